"""Make the parts of a run from a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evergram.collectives import ALONE, Collectives
from evergram.data.corpus import Corpus
from evergram.data.prepared.block_sampler import BlockSampler
from evergram.data.prepared.mapped_corpus import MappedCorpus
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
from evergram.errors import RecipeError
from evergram.gramian.estimator import GramianEstimator
from evergram.gramian.kinds import BatchEstimatorSettings
from evergram.tasks.objective import Objective
from evergram.training.factors import build_measures, prior_constant, sparse_weights, start_tables
from evergram.training.joint import JointAlignment
from evergram.training.memory import place_tables, refuse_beyond_memory, run_traits
from evergram.training.optimizers import build_optimizers
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.recipe.training import StepSettings
from evergram.training.step import Step
from evergram.training.sweeps import SweepStep


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
    task, size, seed = settings.task, settings.batch_size, settings.version_seed
    measures = {
        side: build_measures(task.measures_of(side), corpus.counts(side), entities.vocabulary)
        for side, entities in zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
    }
    draws = PairDraws(
        task.pair_target,
        task.drawn,
        task.wants_negatives,
        short_batch=not settings.training.fills_batches,
    )
    whole = task.drawn == "whole_queries"
    if isinstance(corpus, MappedCorpus):
        blocks = task.sparse != "exclude" and not whole and not settings.training.sweeps
        if len(corpus) > BlockSampler.least and blocks:
            weighted = task.sparse == "weight"
            return BlockSampler(
                corpus, draws, batch_size=size, seed=seed, measures=measures, weighted=weighted
            )
        # Small data, or a sampler that needs all pairs: in the order of a corpus in memory.
        corpus = corpus.in_memory()
    weight: Tensor | None = None
    if task.sparse != "none":
        weight = sparse_weights(task.sparse, settings.strengths.penalty, corpus, measures)
    return (WholeQuerySampler if whole else ExampleSampler)(
        corpus,
        draws,
        batch_size=size,
        seed=seed,
        measures=measures,
        pair_weight=weight,
    )


def build_independent(
    settings: FitSettings, corpus: Corpus, sampler: ExampleSampler
) -> dict[str, EntitySampler] | None:
    """Return, for each side, the sampler of the entities that estimators learn from; None where
    they learn from the batches."""
    gramian = settings.gramian
    if not isinstance(gramian, BatchEstimatorSettings):
        return None
    return {
        side: entity_sampler(
            corpus.counts(side),
            sampler.measures[side],
            kind=gramian.sampler or "linear",
            batch_size=gramian.batch_size or sampler.batch_size,
            seed=2 * settings.version_seed + 1 + i,
        )
        for i, side in enumerate(SIDES)
    }


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
        folder: where tables and estimators' state go that are too large for memory; None maps
            tables from temporary files.
        collectives: of the processes that share each batch.
    Raises: DataError. RecipeError: also if the machine has too little memory.
    """
    companions = Companions() if companions is None else companions
    training, gramian, joint = settings.training, settings.gramian, companions.joint
    unmet = settings.unmet(run_traits(device, joint=joint is not None))
    if unmet:
        raise RecipeError(unmet)
    encoder = _encoder(settings, corpus, device, companions, folder)
    if joint is not None:
        joint.to(device)
    sampler = build_sampler(settings, corpus)
    prior = settings.prior.build(corpus, companions.past, settings.seed)
    objective = _objective(settings, corpus, prior, sampler.measures).to(device)
    factors = prior
    if objective.task.wants_means:
        factors = {side: torch.cat([f, torch.ones(len(f), 1)], dim=1) for side, f in prior.items()}
    learns = objective.wants_moments and not training.sweeps  # a sweep has exact moments
    measured = sampler.measures if learns else {}
    estimators = _estimators(settings, encoder.dim, measured, factors, folder)
    independent = gramian.is_independent and objective.wants_moments
    optimizers: Sequence[torch.optim.Optimizer] = ()
    if isinstance(training, StepSettings):
        optimizers = build_optimizers(encoder, training, settings.table_rate, joint, objective.task)
    kind = partial(SweepStep, sampler=sampler) if training.sweeps else Step
    step = kind(
        encoder,
        encoder.read(corpus).to(device),
        objective,
        {side: [e.to(device) for e in each] for side, each in estimators.items()},
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
    return step, sampler, build_independent(settings, corpus, sampler) if independent else None


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
    model = settings.model
    if companions.own is not None:
        sizes = {"query": len(corpus.queries), "candidate": len(corpus.candidates)}
        dim = companions.own.dim
        needed = settings.task.candidates_bytes(sizes["candidate"], dim)
        refuse_beyond_memory(settings, needed, sizes, dim)
        encoder: Encoder = companions.own.copied()
    else:
        encoder = _recipes_encoder(settings, corpus, device, folder)
        # From an earlier version every known row is that version's.
        fresh = companions.start is None
        if fresh and isinstance(model, FactorizationSettings) and model.start != "random":
            start_tables(encoder, model, corpus, settings.version_seed)
    if model.exponent is not None:
        publish_by_popularity(encoder, model.exponent, corpus)
    encoder.to(device)
    if companions.start is not None:
        encoder.start_from(companions.start)
    encoder.layer_dtype = getattr(torch, settings.training.precision)
    return encoder


def _recipes_encoder(
    settings: FitSettings, corpus: Corpus, device: torch.device, folder: Path | None
) -> Encoder:
    """Return the encoder that the recipe makes, as it is drawn."""
    model = settings.model
    schema = Schema.of(corpus, features=model.reads_features)
    place = place_tables(settings, schema, device, folder)
    generator = torch.Generator().manual_seed(settings.version_seed)
    options = encoder_options(model, settings.version)
    return build_encoder(model.kind, options, schema, generator, place)


def _estimators(
    settings: FitSettings,
    dim: int,
    measures: Mapping[str, Tensor],
    factors: Mapping[str, Tensor],
    folder: Path | None,
) -> dict[str, list[GramianEstimator]]:
    """Return an estimator for each side and measure; state that is too large for memory is in
    `folder`."""
    estimators: dict[str, list[GramianEstimator]] = {side: [] for side in SIDES}
    for side, columns in measures.items():
        for r, measure in enumerate(columns.unbind(1)):
            file = None if folder is None else folder / f"cache-{side}-{r}.bin"
            made = settings.gramian.built(dim, measure, factors[side], file)
            estimators[side].append(made)
    return estimators


def _objective(
    settings: FitSettings,
    corpus: Corpus,
    prior: Mapping[str, Tensor],
    measures: Mapping[str, Tensor],
) -> Objective:
    """Return the task's loss with its penalties, by priors [N, K] and measures [N, R]."""
    task, strengths = settings.task, settings.strengths
    with task.naming_slips("task"):
        built = task.build(corpus)
    objective = Objective(
        built,
        strengths.penalty,
        strengths.l2,
        dict.fromkeys(SIDES, task.orthogonal_weight),
        prior_constant(prior, measures, strengths.penalty),
        strengths.l2_measure,
    )
    objective.task.lower_products = settings.training.precision == "bfloat16"
    return objective
