"""From a recipe to its corpus, the split of a version, the parts of a run and the place of tables.

λ and l2 scale with the data (docs/recipes.md has the formula of "auto"): a denser matrix is pushed
down more, and entities met rarely are held closer to zero. In the words of implicit ALS, with ρ_u
and ρ_v for the two norms, √(ρ_u ρ_v) = 1 whatever the data. Both are wide valleys: half of either
or twice as much costs a percent or two of Recall@20. They were found on the head of MovieLens 25M,
Gowalla and Amazon Beauty, on all pairs and on small parts of them.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import pow, sqrt
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from evergram.atomic_files import make_folder
from evergram.collectives import ALONE, Collectives, process_count
from evergram.data.corpus import Corpus
from evergram.data.data_sets import existing
from evergram.data.loaders import NamedData, PairsFile, PythonData, TableData
from evergram.data.prepared.block_sampler import BlockSampler
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.prepared.prepare import machine_memory
from evergram.data.rolling_window import RollingWindow
from evergram.data.sampling import (
    EntitySampler,
    ExampleSampler,
    PairDraws,
    WholeQuerySampler,
)
from evergram.data.split import (
    HeldOut,
    Split,
    TrainedPairs,
    given_split,
    of_at_least,
    random_split,
    time_split,
    window_split,
)
from evergram.data.tables import read_interactions
from evergram.did_you_mean import did_you_mean
from evergram.encoders.encoder import SIDES, Encoder, Schema, build_encoder
from evergram.encoders.kinds import EncoderSettings, FactorizationSettings
from evergram.encoders.module_encoder import ModuleEncoder
from evergram.errors import DataError, RecipeError
from evergram.evaluation.ranking import discriminating
from evergram.gramian.estimator import GramianEstimator
from evergram.gramian.kinds import BatchEstimatorSettings, EstimatorSettings
from evergram.kinds import Trait, kind_of, traits_where, unmet
from evergram.lineage.lineage import Lineage, PairHistory
from evergram.tasks.kinds import TaskSettings
from evergram.tasks.task import Objective
from evergram.training.factors import (
    build_measures,
    distinct_pairs,
    prior_constant,
    sparse_weights,
    start_tables,
)
from evergram.training.joint import JointAlignment
from evergram.training.optimizers import build_optimizers
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import (
    MAPPED,
    AdamTraining,
    GivenSplit,
    PriorSettings,
    RandomSplit,
    StepSettings,
    TimeSplit,
    Training,
)
from evergram.training.step import Step
from evergram.training.sweeps import SweepStep

# Fewer interactions than this are rarely enough to hold pairs out of.
FEW = 200


def load_corpus(recipe: Recipe) -> Corpus:
    """Return all interactions that the recipe names.

    Raises: DataError: a file cannot be used; or data.kind is 'python', which names none.
    """
    data = recipe.data
    corpus = data.load(recipe.seed)
    if isinstance(data, NamedData) and data.minimum_value is not None:
        if not corpus.has_values:
            raise DataError(
                "data.minimum_value needs a column 'value', and there is none; leave it out."
            )
        corpus = corpus.where(of_at_least(data.minimum_value))
        if not len(corpus):
            raise DataError(f"No interaction has a value of at least {data.minimum_value}.")
    return replace(corpus, origin=_origin(recipe))


def corpus_for(recipe: Recipe, corpus: Corpus | None, lineage: Lineage | None = None) -> Corpus:
    """Return the corpus that was passed; without one, the one that the recipe names.

    Args:
        lineage: whose next version is trained, or whose newest is measured.
    Raises: DataError: as `load_corpus`; or no corpus was passed, and the newest version was trained
        on one that was.
    """
    if isinstance(corpus, Corpus):
        return corpus
    if corpus is not None:
        raise DataError(
            f"A {type(corpus).__name__} is not a corpus; give evergram.Corpus.of(…), which reads "
            "tables, matrices and lists."
        )
    if lineage is None:
        return load_corpus(recipe)
    newest = lineage.newest
    if lineage.manifest(newest).recipe.get("data", {}).get("kind") == kind_of(PythonData):
        raise DataError(
            f"Version {newest} was trained on a corpus that was passed in Python, which the "
            "lineage does not hold; pass it again from Python, as corpus=…."
        )
    return load_corpus(recipe)


def recorded_recipe(recipe: Recipe, corpus: Corpus) -> Recipe:
    """Return the recipe that a version trained on this corpus records: with data.kind = 'python'
    unless `load_corpus` gives the same corpus by the recipe."""
    if corpus.origin == _origin(recipe):
        return recipe
    data, own = recipe.data, {}
    if isinstance(recipe.split, GivenSplit):
        own = {key: getattr(data, key) for key in PairsFile.model_fields if key != "kind"}
    return recipe.model_copy(update={"data": PythonData(**own)})


def _origin(recipe: Recipe) -> str:
    """Return all that a recipe says of its corpus, as JSON."""
    data = recipe.data.model_dump(mode="json", exclude={"test"})
    seed = recipe.seed if recipe.data.is_drawn else None
    return json.dumps({**data, "seed": seed}, sort_keys=True)


def split_for(
    recipe: Recipe, corpus: Corpus, version: int, history: PairHistory | None = None
) -> Split:
    """Return the training, selection and test pairs of a version, in rows of the vocabularies of
    `Split.training`: an entity without a training pair has no row.

    Args:
        history: the pairs that the lineage has held out and trained on; None for a new lineage.
    Raises: RecipeError: the recipe has no such version, or another salt than the lineage.
        DataError: nothing is left to select or to test by.
    """
    salt = salt_of(recipe.name, history)
    trained = TrainedPairs() if history is None else history.trained
    held_out = HeldOut(salt, trained, recipe.split.selects_by)
    if isinstance(recipe.split, GivenSplit):
        data = recipe.data
        assert isinstance(data, TableData | PairsFile)  # as it has a file of test pairs
        columns = {str(k): v for k, v in data.columns.items()}
        test = read_interactions(existing(str(data.test)), columns, data.bad_rows)
        test = test.select(["query", "candidate"])  # of a large test file, what is used alone
        split = given_split(corpus, test, share=recipe.split.share, held_out=held_out)
    elif isinstance(recipe.split, RandomSplit):
        split = random_split(corpus, share=recipe.split.share, held_out=held_out)
    else:
        assert isinstance(recipe.split, TimeSplit)
        shares, last = recipe.split.versions, recipe.split.last
        if last is not None:
            split = window_split(corpus, last=RollingWindow.parse(last), held_out=held_out)
        elif version < len(shares):
            share, until = shares[version], recipe.split.ends[version + 1]
            split = time_split(corpus, share=share, until=until, held_out=held_out)
        else:
            raise RecipeError(
                f"split.versions has {len(shares)} shares, so version {version} has none; append "
                "the share of the corpus that it has seen, or set split.last = '5 %' in its "
                "place, which holds for every version."
            )
    if history is not None and history.untested is not None:
        split = split.without_test(history.untested)
    elif not len(split.test) and split.trained_before:
        raise DataError(
            f"All {split.trained_before} pairs that the split holds out were trained on by an "
            "earlier version of the lineage, so nothing is left to test by; give data that has "
            "grown, or another test file."
        )
    if not len(split.selection) or not (len(split.test) or split.untested):
        left_out = split.unknown_queries + split.trained_before + split.in_training
        remedy = (
            "Give a data.test with other pairs of queries and candidates of the training data"
            if recipe.split.kind == "given"
            else f"Give more data, at best {FEW} interactions or more, in which queries come more "
            "than once with several candidates, or hold out more in [split]"
        )
        raise DataError(
            f"The split holds out too few pairs to judge a model by: of {len(corpus)} interactions "
            f"{len(split.selection)} to choose an epoch and {len(split.test)} to test; "
            f"{left_out} more are of queries that training does not know, or were trained on. "
            f"{remedy}."
        )
    return split


def final_split(split: Split, *, refits: bool) -> Split:
    """Return the split of the published model: with a refit, its training corpus has all but the
    test pairs.

    Raises: RecipeError: the same pairs select and test, so there is nothing more to train on.
    """
    if not refits:
        return split
    if split.final is None:
        raise RecipeError(
            "training.refit trains on the pairs that chose the epoch too, and with split.selection "
            "= 'paper' those are the test pairs; set training.refit = false or split.selection = "
            "'strict'."
        )
    return split.final()


def salt_of(name: str, history: PairHistory | None = None) -> str:
    """Return the salt of held-out pairs: the lineage's, which is its first recipe's name."""
    return name if history is None or history.salt is None else history.salt


def with_selecting_metric(
    recipe: Recipe, split: Split, progress: Progress | None = None
) -> tuple[Recipe, list[str]]:
    """Return the recipe with a `training.metric` that can tell models apart on its selection pairs,
    and a sentence if it is another one.

    Args:
        progress: says that sentence; None says nothing.
    Raises: DataError: no metric can.
    """
    written, candidates = recipe.training.metric, len(split.training.candidates)
    metric = discriminating(written, split.candidates_left())
    if metric == written:
        return recipe, []
    sentence = (
        f"{written} holds nearly all of the {candidates} candidates, whatever the model; "
        f"training.metric is {metric} here."
    )
    if progress is not None:
        progress.say(sentence)
    names = [metric if name == written else name for name in recipe.metrics]
    training = recipe.training.model_copy(update={"metric": metric})
    metrics = list(dict.fromkeys(names))
    return recipe.model_copy(update={"training": training, "metrics": metrics}), [sentence]


PENALTY, PENALTY_POWER = 66.0, 0.25
L2 = 0.5
TABLE_RATE, ADAM_RATE = 0.1, 0.01
# Fewer steps an epoch would make early stopping evaluate too often.
STEPS, LEAST_BATCH, LARGEST_BATCH = 32, 256, 4096
# Queries of a step that has all of their pairs, at most.
WHOLE_QUERIES = 256


@dataclass(frozen=True)
class Strengths:
    """λ of each measure, the weight of squared norms, and under which measure they are."""

    penalty: list[float]
    l2: float
    l2_measure: str


def strengths_of(recipe: Recipe, corpus: Corpus) -> Strengths:
    """Return a recipe's `task.penalty` and `task.l2` on this corpus, as numbers.

    Tasks with negatives of their own, or with a partition function, get no penalty and no l2 from
    "auto": their loss keeps scores apart by itself.
    """
    task, penalty, l2 = recipe.task, 0.0, 0.0
    if task.needs_penalty and "auto" in (task.penalty, task.l2):
        met = [int((corpus.counts(side) > 0).sum()) for side in ("query", "candidate")]
        pairs, entities = len(corpus) - corpus.repeats, met[0] * met[1]
        penalty, l2 = PENALTY * pow(pairs / entities, PENALTY_POWER), L2 * sqrt(entities) / pairs
    penalties = [penalty] if task.penalty == "auto" else list(task.penalty)
    if task.l2 != "auto":
        return Strengths(penalties, task.l2, task.l2_measure or "examples")
    if recipe.model.normalize:  # rows of unit norm have no length to weigh
        l2 = 0.0
    if l2 and task.pair_target == "value":
        # Scores are as large as the values, and squared norms grow with scores, not their squares.
        total = torch.zeros((), dtype=torch.float64)
        for block in corpus.blocks():
            if block.value is None:
                raise DataError(
                    "task.target = 'value' needs a column 'value'; use 'one' without it."
                )
            total += block.value.double().square().mean() * (len(block) / len(corpus))
        l2 *= float(total.sqrt())
    return Strengths(penalties, l2, task.l2_measure or "penalty")


def rate_of(recipe: Recipe) -> float:
    """Return the learning rate of tables of ids: the recipe's number, or `TABLE_RATE`; of Adam
    `ADAM_RATE`. A sweep has none: 0."""
    training = recipe.training
    if not isinstance(training, StepSettings):
        return 0.0
    if training.table_rate != "auto":
        return training.table_rate
    return ADAM_RATE if isinstance(training, AdamTraining) else TABLE_RATE


def batch_size_of(recipe: Recipe, corpus: Corpus) -> int:
    """Return how many pairs a step has: the recipe's number; for "auto" a power of two from 256 to
    4,096 that makes 32 steps an epoch or a few more.

    A graph encoder passes over the graph in every step, so its batch is 4,096 whatever the data.
    Where queries are drawn with all of their pairs, a step has 256 queries, or as many as make 32
    steps an epoch, if these are fewer. A sweep has all pairs.
    """
    if not isinstance(recipe.training, StepSettings):
        return len(corpus)
    size = recipe.training.batch_size
    if size != "auto":
        return size
    if recipe.task.drawn == "whole_queries":
        met = int((corpus.counts("query") > 0).sum())
        queries = min(WHOLE_QUERIES, max(1, met // STEPS))
        return max(1, round(queries * len(corpus) / met))
    if recipe.model.passes_over_graph:
        return LARGEST_BATCH
    wanted = max(1, len(corpus) // STEPS)
    return min(max(1 << (wanted.bit_length() - 1), LEAST_BATCH), LARGEST_BATCH)


@dataclass(frozen=True)
class FitSettings:
    """The settings of one version's training: the recipe's tables, and numbers for one corpus in
    place of "auto"."""

    model: EncoderSettings
    task: TaskSettings
    prior: PriorSettings
    gramian: EstimatorSettings
    training: Training
    strengths: Strengths
    batch_size: int
    table_rate: float
    seed: int
    version: int

    @classmethod
    def of(cls, recipe: Recipe, corpus: Corpus, version: int) -> Self:
        """Return the settings by which a recipe trains a version on a corpus. Raises: DataError."""
        return cls(
            model=recipe.model,
            task=recipe.task,
            prior=recipe.prior,
            gramian=recipe.gramian,
            training=recipe.training.decided(),
            strengths=strengths_of(recipe, corpus),
            batch_size=batch_size_of(recipe, corpus),
            table_rate=rate_of(recipe),
            seed=recipe.seed,
            version=version,
        )

    @property
    def traits(self) -> frozenset[Trait]:
        """What the settings have, for keys of [training] that need it."""
        tables = (self.model, self.task, self.prior, self.gramian, self.training)
        return frozenset[Trait]().union(*(table.traits for table in tables))

    def unmet(self, run: Collection[Trait]) -> str:
        """Return a sentence on what the optimizer or the tables need and the run's traits lack."""
        found = unmet({"training": self.training}, self.traits | set(run), ())
        return found.get("training.optimizer") or found.get("training.tables", "")

    @property
    def version_seed(self) -> int:
        """The seed of the version's start and of its order of batches.

        With the same seed a version would be nearly compatible with the one before by accident,
        and the next recipe would not be.
        """
        return self.seed + 1_000_003 * self.version


@dataclass(frozen=True)
class Companions:
    """The modules and tensors that a training uses in addition to its recipe.

    Args:
        joint: trained together with the encoder, in place.
        start: an encoder of the same architecture; training starts from its parameters.
        own: an encoder of the user's modules; a copy of it is trained in place of the recipe's.
    """

    joint: JointAlignment | None = None
    start: Encoder | None = None
    own: ModuleEncoder | None = None


def encoder_options(model: EncoderSettings, version: int) -> dict[str, Any]:
    """Return the keywords that `build_encoder` takes for a version, as JSON."""
    options: dict[str, Any] = {"dim": model.dim_of(version), "scale": model.start_scale}
    if model.normalize:
        options["normalize"] = True
    return options | model.options(version)


def build_sampler(settings: FitSettings, corpus: Corpus) -> ExampleSampler:
    """Return the sampler of each epoch's pairs.

    Raises: DataError: a column that the task needs is absent.
    """
    task, training = settings.task, settings.training
    measures = {
        side: build_measures(task.measures_of(side), corpus.counts(side), entities.vocabulary)
        for side, entities in zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
    }
    draws = PairDraws(
        task.pair_target, task.drawn, task.wants_negatives, short_batch=not training.fills_batches
    )
    common: dict[str, Any] = {
        "batch_size": settings.batch_size,
        "seed": settings.version_seed,
        "measures": measures,
    }
    whole = task.drawn == "whole_queries"
    if isinstance(corpus, MappedCorpus):
        blocks = task.sparse != "exclude" and not whole and not training.sweeps
        if len(corpus) > BlockSampler.least and blocks:
            return BlockSampler(corpus, draws, weighted=task.sparse == "weight", **common)
        # Small data, or a sampler that needs all pairs: in the order of a corpus in memory.
        corpus = corpus.in_memory()
    weight: Tensor | None = None
    if task.sparse != "none":
        weight = sparse_weights(task.sparse, settings.strengths.penalty, corpus, measures)
    kind = WholeQuerySampler if whole else ExampleSampler
    return kind(corpus, draws, pair_weight=weight, **common)


def prepare(
    settings: FitSettings,
    corpus: Corpus,
    device: torch.device,
    companions: Companions | None = None,
    folder: Path | None = None,
    collectives: Collectives = ALONE,
) -> tuple[Step, ExampleSampler, dict[str, EntitySampler] | None]:
    """Return a run's step, the sampler of its pairs, and those of entities drawn apart, if any.

    Args:
        folder: where tables go that are too large for memory; None maps them from temporary files.
        collectives: of the processes that share each batch.
    Raises: DataError. RecipeError: also if the machine has too little memory.
    """
    companions = Companions() if companions is None else companions
    training, gramian, joint = settings.training, settings.gramian, companions.joint
    if lacking := settings.unmet(run_traits(device, joint=joint is not None)):
        raise RecipeError(lacking)
    encoder = _encoder(settings, corpus, device, companions, folder)
    if joint is not None:
        joint.to(device)
    sampler = build_sampler(settings, corpus)
    ids = {"query": corpus.queries.vocabulary, "candidate": corpus.candidates.vocabulary}
    prior = settings.prior.build(ids, partial(distinct_pairs, corpus), settings.seed)
    strengths = settings.strengths
    objective = Objective(
        settings.task.build(corpus),
        strengths.penalty,
        strengths.l2,
        prior_constant(prior, sampler.measures, strengths.penalty),
        strengths.l2_measure,
    ).to(device)
    objective.task.lower_products = training.precision == "bfloat16"
    factors = prior
    if objective.task.wants_means:
        factors = {side: torch.cat([f, torch.ones(len(f), 1)], dim=1) for side, f in prior.items()}
    estimators: dict[str, list[GramianEstimator]] = {side: [] for side in SIDES}
    if objective.wants_moments and not training.sweeps:  # a sweep has exact moments
        for side, columns in sampler.measures.items():
            made = [gramian.build(encoder.dim, m, factors[side]) for m in columns.unbind(1)]
            estimators[side] = [estimator.to(device) for estimator in made]
    independent = gramian.is_independent and objective.wants_moments
    draws: dict[str, EntitySampler] | None = None
    if independent and isinstance(gramian, BatchEstimatorSettings):
        draws = {
            side: EntitySampler(
                corpus.counts(side),
                sampler.measures[side],
                kind=gramian.sampler or "linear",
                batch_size=gramian.batch_size or sampler.batch_size,
                seed=2 * settings.version_seed + 1 + i,
            )
            for i, side in enumerate(SIDES)
        }
    optimizers: Sequence[torch.optim.Optimizer] = ()
    if isinstance(training, StepSettings):
        optimizers = build_optimizers(encoder, training, settings.table_rate, joint, objective.task)
    kind = partial(SweepStep, sampler=sampler) if training.sweeps else Step
    step = kind(
        encoder,
        encoder.read(corpus).to(device),
        objective,
        estimators,
        sampler.measures,
        {side: columns.to(device) for side, columns in factors.items()},
        prior["query"].shape[1],
        optimizers,
        joint,
        independent,
        training.precondition,
        samples_gradient=gramian.samples_gradient,
        decay=training.decay,
        rescales=training.rescale_rows,
        collectives=collectives,
    )
    return step, sampler, draws


def pick_device(name: str, tables: str = "auto") -> torch.device:
    """Return the device of a name; "auto" is CUDA if there is one.

    Args:
        tables: `training.tables`; for tables that are mapped from files, "auto" is the CPU.
    Raises: RecipeError: no device has that name, or there is no CUDA.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise RecipeError(
            f"--device {name} is not known; it must be auto, cpu or cuda"
            f"{did_you_mean(name, ('auto', 'cpu', 'cuda'))}."
        )
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise RecipeError("--device cuda was asked for and this machine has none; use auto or cpu.")
    chosen = name == "auto" and available and tables != "mapped"
    return torch.device("cuda" if name == "cuda" or chosen else "cpu")


def _encoder(
    settings: FitSettings,
    corpus: Corpus,
    device: torch.device,
    companions: Companions,
    folder: Path | None,
) -> Encoder:
    """Return the encoder to train: the recipe's at its start, or a copy of the user's."""
    model, seed = settings.model, settings.version_seed
    if companions.own is not None:
        sizes = {"query": len(corpus.queries), "candidate": len(corpus.candidates)}
        dim = companions.own.dim
        needed = settings.task.candidates_bytes(sizes["candidate"], dim)
        refuse_beyond_memory(settings, needed, sizes, dim)
        encoder: Encoder = companions.own.copied()
    else:
        schema = Schema.of(corpus, features=model.reads_features)
        place = place_tables(settings, schema, device, folder)
        generator = torch.Generator().manual_seed(seed)
        options = encoder_options(model, settings.version)
        encoder = build_encoder(model.kind, options, schema, generator, place)
        # From an earlier version every known row is that version's.
        fresh = companions.start is None
        if fresh and isinstance(model, FactorizationSettings) and model.start != "random":
            start_tables(encoder, model, corpus, seed)
    encoder.to(device)
    if companions.start is not None:
        encoder.start_from(companions.start)
    encoder.layer_dtype = getattr(torch, settings.training.precision)
    return encoder


log: logging.Logger = logging.getLogger(__name__)

FLOAT = 4
# A layer also has its gradient and Adam's two means.
LAYER_COPIES = 4


def place_tables(
    settings: FitSettings, schema: Schema, device: torch.device, folder: Path | None
) -> Path | None:
    """Return the folder from which a training's tables are mapped; None keeps them in memory.

    Args:
        schema: of the corpus.
        folder: of the run, on the disk that has room for it; None takes one for temporary files.
    Raises: RecipeError: the training needs more memory than there is.
    """
    model, version, choice = settings.model, settings.version, settings.training.tables
    dim, sizes = model.dim_of(version), {side: len(schema.ids(side)) for side in SIDES}
    needed = needed_bytes(model, schema, version)
    needed += settings.task.candidates_bytes(sizes["candidate"], dim)
    has = settings.traits | run_traits(device)
    can_map = choice != "memory" and all(trait in has for trait in MAPPED.traits)
    exceeds = needed > machine_memory()
    if not (choice == "mapped" or (exceeds and can_map)):
        refuse_beyond_memory(settings, needed, sizes, dim)
        return None
    tables, vectors = _tables_and_vectors(model, schema, version)
    refuse_beyond_memory(settings, needed - tables - vectors, sizes, dim)
    place = Path(tempfile.gettempdir()) if folder is None else folder
    make_folder(place)
    if exceeds:
        log.warning(
            f"Tables of {tables:,} bytes and as many vectors as there are entities do not fit into "
            f"memory: they are mapped from files in {place}, at the speed of that disk."
        )
    return place


def refuse_beyond_memory(
    settings: FitSettings, needed: int, sizes: Mapping[str, int], dim: int
) -> None:
    """Raises: RecipeError: a process needs more bytes of memory than there are.

    Args:
        sizes: entities of each side.
        dim: D.
    """
    there = machine_memory()
    if needed <= there:
        return
    model = settings.model
    size, way = f"vectors of {dim} numbers", "give modules of shorter vectors"
    if model.made_by_recipe:
        size, way = f"model.dim = {dim}", "lower model.dim"
    if settings.task.wants_all_candidates:
        way += ", or set task.kind = 'pointwise', which needs a batch's candidates in a step only"
    raise RecipeError(
        f"Training {sum(sizes.values()):,} entities with {size} needs at least "
        f"{needed:,} bytes of memory, and this machine has {there:,}; {way}."
    )


def run_traits(device: torch.device, *, joint: bool = False) -> frozenset[Trait]:
    """Return the traits of a run, `joint` with a transform."""
    return traits_where(
        {
            Trait.CPU: device.type == "cpu",
            Trait.ONE_PROCESS: process_count() == 1,
            Trait.NO_JOINT_TRANSFORM: not joint,
        }
    )


def needed_bytes(model: EncoderSettings, schema: Schema, version: int) -> int:
    """Return the bytes that a training of this version needs at least; it will use far more."""
    dim = model.dim_of(version)
    # Both sides' second moments are published in float64.
    moments = 2 * 2 * FLOAT * dim * dim
    layers = LAYER_COPIES * FLOAT * model.layer_numbers(dim, version)
    return moments + sum(_tables_and_vectors(model, schema, version)) + layers


def _tables_and_vectors(model: EncoderSettings, schema: Schema, version: int) -> tuple[int, int]:
    """Return the bytes of the tables of ids, and of one vector for each entity."""
    query, candidate = (schema.ids(side) for side in SIDES)
    sizes, row = (len(query), len(candidate)), FLOAT * model.dim_of(version)
    return row * model.table_rows(*sizes), row * sum(sizes)
