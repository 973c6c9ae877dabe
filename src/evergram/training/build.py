"""Make the parts of a run from a recipe, and decide where its tables are.

λ, l2 and the batch size scale with the data. With n distinct pairs of |A| queries and |B|
candidates, and squared error,

    λ = 66 (n / |A||B|)^¼,    l2 = ½ √(|A||B|) / n  under the uniform measure:

a denser matrix is pushed down more, and entities met rarely are held closer to zero. In the
words of implicit ALS, Σ_observed (1 − s)² + α₀ Σ_all s² + ρ_u Σ‖u‖² + ρ_v Σ‖v‖², these are
α₀ = 2 λ n / |A||B| and √(ρ_u ρ_v) = 1, whatever the data. Both are wide valleys: half of either
or twice as much costs a percent or two of Recall@20. They were found on the head of MovieLens 25M,
Gowalla and Amazon Beauty, on all pairs and on small parts of them; docs/measured.md has what they
come to there and elsewhere.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import pow, sqrt
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from evergram.atomic_files import make_folder
from evergram.collectives import ALONE, Collectives, process_count
from evergram.data.corpus import Corpus
from evergram.data.prepared.block_sampler import BlockSampler
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.prepared.prepare import machine_memory
from evergram.data.sampling import (
    EntitySampler,
    ExampleSampler,
    PairDraws,
    WholeQuerySampler,
    entity_sampler,
)
from evergram.did_you_mean import did_you_mean
from evergram.encoders.encoder import Encoder
from evergram.encoders.factory import build_encoder, publish_by_popularity
from evergram.encoders.features import SIDES, Schema
from evergram.encoders.kinds import EncoderSettings, FactorizationSettings
from evergram.encoders.module_encoder import ModuleEncoder
from evergram.errors import DataError, RecipeError
from evergram.gramian.estimator import GramianEstimator
from evergram.gramian.kinds import BatchEstimatorSettings, EstimatorSettings
from evergram.kinds import Trait, traits_where, unmet
from evergram.tasks.kinds import TaskSettings
from evergram.tasks.task import Objective
from evergram.training.factors import build_measures, prior_constant, sparse_weights, start_tables
from evergram.training.joint import JointAlignment
from evergram.training.optimizers import build_optimizers
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import (
    MAPPED,
    AdamTraining,
    PriorSettings,
    StepSettings,
    Training,
)
from evergram.training.step import Step
from evergram.training.sweeps import SweepStep

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
        past: embeddings [N, D′] of the version before, in the rows of the training corpus.
        start: an encoder of the same architecture; training starts from its parameters.
        own: an encoder of the user's modules; a copy of it is trained in place of the recipe's.
    """

    joint: JointAlignment | None = None
    past: Mapping[str, Tensor] | None = None
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
    prior = settings.prior.build(corpus, companions.past, settings.seed)
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
            side: entity_sampler(
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
    if model.exponent is not None:
        publish_by_popularity(encoder, model.exponent, corpus)
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
        size = f"model.dim = {dim}"
        way = f"lower {' or '.join(f'model.{k}' for k in ('dim', *model.size_keys))}"
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
