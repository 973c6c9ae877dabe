"""Build a run from a recipe: the corpus, a version's split, the step, and where tables are stored.

The "auto" values of λ and l2 depend on the data (docs/recipes.md has the formula): a denser matrix
gets a larger penalty, and rare entities are kept closer to zero. In implicit ALS, with ρ_u and ρ_v
for the two norm weights, this is √(ρ_u ρ_v) = 1 for any data. The optimum is flat: halving or
doubling either one costs a percent or two of Recall@20. The constants were fitted on the head of
MovieLens 25M, Gowalla and Amazon Beauty, on all pairs and on small samples.
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
    SweepSampler,
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

# With fewer interactions there are rarely enough pairs to hold out.
FEW = 200


def load_corpus(recipe: Recipe) -> Corpus:
    """Return all interactions of the recipe's data.

    Raises: DataError: a file cannot be read; or data.kind is 'python', which has no file.
    """
    data = recipe.data
    corpus = data.load(recipe.seed)
    if isinstance(data, NamedData) and data.minimum_value is not None:
        if not corpus.has_values:
            raise DataError(
                "data.minimum_value needs a column 'value', which the data lacks; leave it out."
            )
        corpus = corpus.where(of_at_least(data.minimum_value))
        if not len(corpus):
            raise DataError(f"No interaction has a value of at least {data.minimum_value}.")
    return replace(corpus, origin=_origin(recipe))


def corpus_for(recipe: Recipe, corpus: Corpus | None, lineage: Lineage | None = None) -> Corpus:
    """Return `corpus`, or load the recipe's data if it is None.

    Args:
        lineage: the lineage to which a version is added, or whose newest version is measured.
    Raises: DataError: as `load_corpus`; `corpus` is not a `Corpus`; or it is None, and the newest
        version was trained on a corpus passed from Python.
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
            "lineage does not store; pass it again from Python, as corpus=…."
        )
    return load_corpus(recipe)


def recorded_recipe(recipe: Recipe, corpus: Corpus) -> Recipe:
    """Return the recipe to store with a version trained on this corpus: with data.kind = 'python'
    unless the corpus was loaded from the recipe's data."""
    if corpus.origin == _origin(recipe):
        return recipe
    data, test_file = recipe.data, {}
    if isinstance(recipe.split, GivenSplit):
        test_file = {key: getattr(data, key) for key in PairsFile.model_fields if key != "kind"}
    return recipe.model_copy(update={"data": PythonData(**test_file)})


def _origin(recipe: Recipe) -> str:
    """Return the settings that decide a recipe's corpus, as JSON."""
    data = recipe.data.model_dump(mode="json", exclude={"test"})
    seed = recipe.seed if recipe.data.is_drawn else None
    return json.dumps({**data, "seed": seed}, sort_keys=True)


def split_for(
    recipe: Recipe, corpus: Corpus, version: int, history: PairHistory | None = None
) -> Split:
    """Return a version's training, selection and test pairs, as rows of the vocabularies of
    `Split.training`. An entity without a training pair has no row.

    Args:
        history: the pairs that the lineage has held out and trained on; None for a new lineage.
    Raises: RecipeError: split.versions has no share for this version. DataError: too few pairs are
        left to select an epoch or to test.
    """
    salt = salt_of(recipe.name, history)
    trained = TrainedPairs() if history is None else history.trained
    held_out = HeldOut(salt, trained, recipe.split.selects_by)
    if isinstance(recipe.split, GivenSplit):
        data = recipe.data
        assert isinstance(data, TableData | PairsFile)  # only these have a file of test pairs
        columns = {str(k): v for k, v in data.columns.items()}
        test = read_interactions(existing(str(data.test)), columns, data.bad_rows)
        test = test.select(["query", "candidate"])  # keep a large test file small in memory
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
                f"split.versions has {len(shares)} shares and none for version {version}; append "
                "the share of the corpus that it trains on, or set split.last = '5 %' instead, "
                "which works for every version."
            )
    if history is not None and history.untested is not None:
        split = split.without_test(history.untested)
    elif not len(split.test) and split.trained_before:
        raise DataError(
            f"An earlier version of the lineage was trained on all {split.trained_before} pairs "
            "that the split holds out, so no test pair is left; give data with new pairs, or "
            "another test file."
        )
    if not len(split.selection) or not (len(split.test) or split.untested):
        left_out = split.unknown_queries + split.trained_before + split.in_training
        remedy = (
            "Give a data.test with other pairs of queries and candidates of the training data"
            if recipe.split.kind == "given"
            else f"Give more data, ideally {FEW} interactions or more, with several candidates for "
            "most queries, or hold out a larger share in [split]"
        )
        raise DataError(
            f"The split holds out too few pairs to judge a model by: of {len(corpus)} interactions "
            f"{len(split.selection)} to choose an epoch and {len(split.test)} to test; "
            f"{left_out} more were left out, because their query is not in the training data or "
            f"they were trained on. {remedy}."
        )
    return split


def final_split(split: Split, *, refits: bool) -> Split:
    """Return the split of the published model: a refit trains on everything but the test pairs.

    Raises: RecipeError: the same pairs select and test, so a refit would have no more data.
    """
    if not refits:
        return split
    if split.final is None:
        raise RecipeError(
            "training.refit also trains on the pairs that chose the epoch, and with split.selection"
            " = 'paper' those are the test pairs; set training.refit = false or split.selection = "
            "'strict'."
        )
    return split.final()


def salt_of(name: str, history: PairHistory | None = None) -> str:
    """Return the salt for hashing held-out pairs: the name of the lineage's first recipe."""
    return name if history is None or history.salt is None else history.salt


def with_selecting_metric(
    recipe: Recipe, split: Split, progress: Progress | None = None
) -> tuple[Recipe, list[str]]:
    """Return the recipe with a `training.metric` that can tell models apart on its selection pairs,
    and a list with a sentence about the change, also shown by `progress`, or an empty list.

    Raises: DataError: no metric can tell models apart.
    """
    written, candidates = recipe.training.metric, len(split.training.candidates)
    counts = split.training.counts("query")[torch.unique(split.selection.query)]
    # A lower bound that reads no pairs, because repeated pairs count each time.
    least = candidates - counts
    if len(least) and int(least.max()) > 1 and discriminating(written, least) == written:
        return recipe, []
    metric = discriminating(written, split.candidates_left())
    if metric == written:
        return recipe, []
    sentence = (
        f"{written} would include nearly all of the {candidates} candidates for any model; "
        f"training.metric is {metric} instead."
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
# With fewer steps per epoch, early stopping would evaluate too often.
STEPS, LEAST_BATCH, LARGEST_BATCH = 32, 256, 4096
# The most queries in a step, for tasks that draw queries with all of their pairs.
WHOLE_QUERIES = 256


@dataclass(frozen=True)
class Strengths:
    """λ of each measure, the weight of squared norms, and the measure of those norms."""

    penalty: list[float]
    l2: float
    l2_measure: str


def strengths_of(recipe: Recipe, corpus: Corpus) -> Strengths:
    """Return `task.penalty` and `task.l2` as numbers, with "auto" computed from the corpus.

    For tasks with negatives or a partition function "auto" is 0, because their loss already lowers
    the scores of unobserved pairs.
    """
    task, penalty, l2 = recipe.task, 0.0, 0.0
    if task.needs_penalty and "auto" in (task.penalty, task.l2):
        sizes = [int((corpus.counts(side) > 0).sum()) for side in ("query", "candidate")]
        pairs, all_pairs = len(corpus) - corpus.repeats, sizes[0] * sizes[1]
        penalty, l2 = PENALTY * pow(pairs / all_pairs, PENALTY_POWER), L2 * sqrt(all_pairs) / pairs
    penalties = [penalty] if task.penalty == "auto" else list(task.penalty)
    if task.l2 != "auto":
        return Strengths(penalties, task.l2, task.l2_measure or "examples")
    if recipe.model.normalize:  # the norms are constant
        l2 = 0.0
    if l2 and task.pair_target == "value":
        # Scores scale with the values, and squared norms scale linearly with scores.
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
    """Return the learning rate of id tables: the recipe's number, or the optimizer's default;
    0 for the solver, which has no learning rate."""
    training = recipe.training
    if not isinstance(training, StepSettings):
        return 0.0
    if training.table_rate != "auto":
        return training.table_rate
    return ADAM_RATE if isinstance(training, AdamTraining) else TABLE_RATE


def batch_size_of(recipe: Recipe, corpus: Corpus) -> int:
    """Return the number of pairs in a step: the recipe's number; for "auto" a power of two from 256
    to 4,096 that makes at least 32 steps per epoch.

    A graph encoder passes over the graph in every step, so "auto" is 4,096 for any data. For tasks
    that draw queries with all of their pairs, a step has 256 queries, or fewer to make 32 steps per
    epoch. The solver has all pairs in one step.
    """
    if not isinstance(recipe.training, StepSettings):
        return len(corpus)
    size = recipe.training.batch_size
    if size != "auto":
        return size
    if recipe.task.drawn == "whole_queries":
        active = int((corpus.counts("query") > 0).sum())
        queries = min(WHOLE_QUERIES, max(1, active // STEPS))
        return max(1, round(queries * len(corpus) / active))
    if recipe.model.passes_over_graph:
        return LARGEST_BATCH
    wanted = max(1, len(corpus) // STEPS)
    return min(max(1 << (wanted.bit_length() - 1), LEAST_BATCH), LARGEST_BATCH)


@dataclass(frozen=True)
class FitSettings:
    """A recipe's settings for training one version, with "auto" replaced by numbers."""

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
        """Return a recipe's settings for one version and corpus. Raises: DataError."""
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
        """The traits of all tables, which keys of [training] may need."""
        tables = (self.model, self.task, self.prior, self.gramian, self.training)
        return frozenset[Trait]().union(*(table.traits for table in tables))

    def unmet(self, run: Collection[Trait]) -> str:
        """Return a sentence on what the optimizer or the tables need and the run lacks, or ""."""
        sentences = unmet({"training": self.training}, self.traits | set(run), ())
        return sentences.get("training.optimizer") or sentences.get("training.tables", "")

    @property
    def version_seed(self) -> int:
        """The seed of the version's initial parameters and batch order. With one seed for all
        versions, a version would be nearly compatible with the previous one by accident."""
        return self.seed + 1_000_003 * self.version


@dataclass(frozen=True)
class Companions:
    """Modules that training uses in addition to its recipe."""

    joint: JointAlignment | None = None  # trained in place, together with the encoder
    # An encoder of the same architecture; training starts from its parameters.
    start: Encoder | None = None
    # An encoder of the user's modules; a copy of it is trained instead of the recipe's.
    own: ModuleEncoder | None = None


def encoder_options(model: EncoderSettings, version: int) -> dict[str, Any]:
    """Return the keyword arguments of `build_encoder` for a version, as JSON values."""
    options: dict[str, Any] = {"dim": model.dim_of(version), "scale": model.start_scale}
    if model.normalize:
        options["normalize"] = True
    return options | model.options(version)


def build_sampler(settings: FitSettings, corpus: Corpus) -> ExampleSampler:
    """Return the sampler of each epoch's pairs.

    Raises: DataError: the corpus lacks a column that the task needs.
    """
    task, training = settings.task, settings.training
    measures = {
        side: build_measures(task.measures_of(side), corpus.counts(side), entities.vocabulary)
        for side, entities in corpus.sides.items()
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
    streamed = isinstance(corpus, MappedCorpus) and len(corpus) > BlockSampler.least
    if training.sweeps:
        if isinstance(corpus, MappedCorpus) and not streamed:
            corpus = corpus.in_memory()
        seed = settings.version_seed
        return SweepSampler(corpus, draws, seed=seed, measures=measures, sparse=task.sparse)
    if isinstance(corpus, MappedCorpus):
        if streamed and task.sparse != "exclude" and not whole:
            return BlockSampler(corpus, draws, weighted=task.sparse == "weight", **common)
        # Small data, or a sampler that needs all pairs in memory.
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
    """Return a run's step, the sampler of its pairs, and the samplers of entities for the Gramian
    estimators if these learn from separate draws, else None.

    Args:
        folder: for tables that are too large for memory; None uses the temporary folder.
        collectives: of the processes that share each batch.
    Raises: DataError. RecipeError: settings do not fit the run, or there is too little memory.
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
    estimators: dict[str, list[GramianEstimator]] = {side: [] for side in SIDES}
    if objective.wants_moments and not training.sweeps:  # the solver computes exact moments
        for side, columns in sampler.measures.items():
            each = (gramian.build(encoder.dim, m, prior[side]) for m in columns.unbind(1))
            estimators[side] = [estimator.to(device) for estimator in each]
    independent = gramian.is_independent and objective.wants_moments
    optimizers: Sequence[torch.optim.Optimizer] = ()
    if isinstance(training, StepSettings):
        optimizers = build_optimizers(encoder, training, settings.table_rate, joint, objective.task)
    kind = partial(SweepStep, sampler=sampler) if isinstance(sampler, SweepSampler) else Step
    step = kind(
        encoder,
        encoder.read(corpus).to(device),
        objective,
        estimators,
        sampler.measures,
        {side: columns.to(device) for side, columns in prior.items()},
        optimizers,
        joint,
        independent,
        training.precondition,
        samples_gradient=gramian.samples_gradient,
        decay=training.decay,
        rescales=training.rescale_rows,
        collectives=collectives,
    )
    return step, sampler, _entity_samplers(settings, corpus, sampler) if independent else None


def _entity_samplers(
    settings: FitSettings, corpus: Corpus, sampler: ExampleSampler
) -> dict[str, EntitySampler] | None:
    """Return the samplers of entities for estimators that learn from separate draws."""
    gramian = settings.gramian
    if not isinstance(gramian, BatchEstimatorSettings):
        return None
    return {
        side: EntitySampler(
            corpus.counts(side),
            sampler.measures[side],
            kind=gramian.sampler or "linear",
            batch_size=gramian.batch_size or sampler.batch_size,
            seed=2 * settings.version_seed + 1 + i,
        )
        for i, side in enumerate(SIDES)
    }


def pick_device(name: str, tables: str = "auto") -> torch.device:
    """Return a device by name; "auto" is CUDA if available, but the CPU if `tables` is "mapped".

    Raises: RecipeError: the name is unknown, or CUDA is not available.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise RecipeError(
            f"--device {name} is unknown; it must be auto, cpu or cuda"
            f"{did_you_mean(name, ('auto', 'cpu', 'cuda'))}."
        )
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise RecipeError("--device cuda: no CUDA device is available; use auto or cpu.")
    automatic = name == "auto" and available and tables != "mapped"
    return torch.device("cuda" if name == "cuda" or automatic else "cpu")


def _encoder(
    settings: FitSettings,
    corpus: Corpus,
    device: torch.device,
    companions: Companions,
    folder: Path | None,
) -> Encoder:
    """Return the encoder to train: newly initialised from the recipe, or a copy of the user's."""
    model, seed = settings.model, settings.version_seed
    if companions.own is not None:
        sizes = {"query": len(corpus.queries), "candidate": len(corpus.candidates)}
        dim = companions.own.dim
        needed = settings.task.candidates_bytes(sizes["candidate"], dim)
        refuse_beyond_memory(settings, needed, sizes, dim)
        encoder: Encoder = companions.own.copied()
    else:
        schema = Schema.of(corpus, features=model.reads_features)
        tables_folder = place_tables(settings, schema, device, folder)
        generator = torch.Generator().manual_seed(seed)
        options = encoder_options(model, settings.version)
        encoder = build_encoder(model.kind, options, schema, generator, tables_folder)
        # `start_from` below overwrites the rows that an earlier version knows.
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
# The layer, its gradient, and Adam's two moments.
LAYER_COPIES = 4


def place_tables(
    settings: FitSettings, schema: Schema, device: torch.device, folder: Path | None
) -> Path | None:
    """Return the folder of memory-mapped tables, or None to keep tables in memory.

    Args:
        folder: the run's folder, on a disk with enough space; None is the temporary folder.
    Raises: RecipeError: training needs more memory than the machine has.
    """
    model, version, choice = settings.model, settings.version, settings.training.tables
    dim, sizes = model.dim_of(version), {side: len(schema.ids(side)) for side in SIDES}
    needed = needed_bytes(model, schema, version)
    needed += settings.task.candidates_bytes(sizes["candidate"], dim)
    traits = settings.traits | run_traits(device)
    can_map = choice != "memory" and all(trait in traits for trait in MAPPED.traits)
    exceeds = needed > machine_memory()
    if not (choice == "mapped" or (exceeds and can_map)):
        refuse_beyond_memory(settings, needed, sizes, dim)
        return None
    tables, vectors = _tables_and_vectors(model, schema, version)
    refuse_beyond_memory(settings, needed - tables - vectors, sizes, dim)
    tables_folder = Path(tempfile.gettempdir()) if folder is None else folder
    make_folder(tables_folder)
    if exceeds:
        log.warning(
            f"Tables of {tables:,} bytes and one vector per entity do not fit into memory: they "
            f"are mapped from files in {tables_folder}, at the speed of that disk."
        )
    return tables_folder


def refuse_beyond_memory(
    settings: FitSettings, needed: int, sizes: Mapping[str, int], dim: int
) -> None:
    """Raise RecipeError if a process needs more memory than the machine has. `needed` is in bytes;
    `sizes` has the number of entities of each side."""
    memory = machine_memory()
    if needed <= memory:
        return
    model = settings.model
    size, remedy = f"vectors of {dim} numbers", "give modules with shorter vectors"
    if model.made_by_recipe:
        size, remedy = f"model.dim = {dim}", "lower model.dim"
    if settings.task.wants_all_candidates:
        remedy += ", or set task.kind = 'pointwise', which only needs a batch's candidates"
    raise RecipeError(
        f"Training {sum(sizes.values()):,} entities with {size} needs at least "
        f"{needed:,} bytes of memory, and this machine has {memory:,}; {remedy}."
    )


def run_traits(device: torch.device, *, joint: bool = False) -> frozenset[Trait]:
    """Return the traits of a run on a device, with a jointly trained transform if `joint`."""
    return traits_where(
        {
            Trait.CPU: device.type == "cpu",
            Trait.ONE_PROCESS: process_count() == 1,
            Trait.NO_JOINT_TRANSFORM: not joint,
        }
    )


def needed_bytes(model: EncoderSettings, schema: Schema, version: int) -> int:
    """Return a lower bound of the bytes that training this version needs; it uses far more."""
    dim = model.dim_of(version)
    # Both sides' second moments are published in float64.
    moments = 2 * 2 * FLOAT * dim * dim
    layers = LAYER_COPIES * FLOAT * model.layer_numbers(dim, version)
    return moments + sum(_tables_and_vectors(model, schema, version)) + layers


def _tables_and_vectors(model: EncoderSettings, schema: Schema, version: int) -> tuple[int, int]:
    """Return the bytes of the id tables, and of one vector per entity."""
    query, candidate = (schema.ids(side) for side in SIDES)
    sizes, row = (len(query), len(candidate)), FLOAT * model.dim_of(version)
    return row * model.table_rows(*sizes), row * sum(sizes)
