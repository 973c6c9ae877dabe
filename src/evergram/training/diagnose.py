"""Diagnose a version: its spectrum, its scores, and the errors of Gramian estimators during
training; and write metrics of a training run for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch, Draw, EntitySampler
from evergram.encoders.encoder import SIDES, Embeddings
from evergram.encoders.module_encoder import EncoderModules, ModuleEncoder
from evergram.errors import DataError, TrainingError
from evergram.evaluation.gramian_error import (
    Histograms,
    Truth,
    gradient_error,
    gramian_error,
    score_histograms,
)
from evergram.gramian.estimator import EntityBatch, GramianEstimator
from evergram.gramian.kinds import (
    ESTIMATORS,
    BatchEstimatorSettings,
    EstimatorSettings,
    SOGramSettings,
)
from evergram.lineage.lineage import Lineage
from evergram.training.build import (
    Companions,
    FitSettings,
    corpus_for,
    final_split,
    pick_device,
    prepare,
    split_for,
)
from evergram.training.callbacks import Callback, ProgressReport
from evergram.training.checkpoint import load_encoder
from evergram.training.factors import build_measures
from evergram.training.loop import Trainer
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.step import Step

# The name of the run's own estimator in the results.
OWN = "this run"
# Steps between two values of the objective in TensorBoard.
OBJECTIVES = 20
# Pairs per histogram of scores in TensorBoard.
SCORES = 100_000


@dataclass
class _Shadow:
    """An estimator of one side that learns from its own draws of entities."""

    estimator: GramianEstimator
    draws: Iterator[Draw]


class Tracking(Callback):
    """Measures the Gramian and gradient errors of several estimators during one training run.

    The other estimators do not change the run: each draws its own entities, embeds them with the
    run's parameters, and is measured as it would be used in the next step. An estimator with a
    cache also sees the pairs of the run's step. Errors are under the first measure. A resumed run
    starts the measurements again.

    Args:
        rivals: settings of the other estimators and of their draws, by name.
        counts: int64 [N] of each side, interactions per entity.
        every: steps between two measurements; each passes over all entities.
        seed: of the draws.
    Source: [G2] Fig. 2 and 6.
    """

    def __init__(
        self,
        rivals: Mapping[str, EstimatorSettings],
        counts: Mapping[str, Tensor],
        *,
        every: int = 20,
        seed: int = 0,
    ) -> None:
        self.rivals: dict[str, EstimatorSettings] = dict(rivals)
        self.counts = counts
        self.every = every
        self.seed = seed
        self.steps: list[int] = []
        # By name, one entry per measurement.
        self.gramian_errors: dict[str, list[float]] = {}
        self.gradient_errors: dict[str, list[float]] = {}
        self._shadows: dict[str, dict[str, _Shadow]] = {}

    def on_step(self, run: Trainer, batch: Batch, objective: Tensor) -> None:
        step, measures = run.step, run.steps % self.every == 0
        if not (self.rivals or measures):
            return
        with step.look() as now:
            if not self._shadows:
                self._shadows = {
                    name: self._shadow(step, now, rival) for name, rival in self.rivals.items()
                }
            for shadows in self._shadows.values():
                self._follow(step, now, shadows, batch.to(run.device))
            if measures:
                self._measure(step, now, run.steps)

    @staticmethod
    def mean(errors: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Return the mean over the second half of the measurements, by name."""
        return {name: fmean(each[len(each) // 2 :]) for name, each in errors.items() if each}

    def _shadow(
        self, run: Step, now: Embeddings, settings: EstimatorSettings
    ) -> dict[str, _Shadow]:
        """Return a new estimator for each side."""
        shadows: dict[str, _Shadow] = {}
        # An exact estimator gets draws too, and ignores them.
        draws_by = settings if isinstance(settings, BatchEstimatorSettings) else SOGramSettings()
        for i, side in enumerate(SIDES):
            measures, factors = run.measures[side][:, :1], run.factors[side]
            estimator = settings.build(run.encoder.dim, measures[:, 0], factors.cpu())
            estimator.to(factors.device)
            estimator.begin(run.population(now, side))
            draws = EntitySampler(
                self.counts[side],
                measures,
                kind=draws_by.sampler or "linear",
                batch_size=draws_by.batch_size or 1024,
                seed=self.seed + i,
            )
            shadows[side] = _Shadow(estimator, draws.epoch(0, 1 << 40))
        return shadows

    def _follow(
        self, run: Step, now: Embeddings, shadows: Mapping[str, _Shadow], batch: Batch
    ) -> None:
        device = batch.query.device
        draws: dict[str, Draw] = {}
        for side, shadow in shadows.items():
            draws[side] = next(shadow.draws).to(device)
            shadow.estimator.begin(run.population(now, side))
        run.show_moved(now, {side: [shadow.estimator] for side, shadow in shadows.items()}, batch)
        moments = {side: [shadow.estimator.moment()] for side, shadow in shadows.items()}
        for side, draw in run.resampled(now, draws, moments).items():
            shadow = shadows[side]
            rows = EntityBatch(
                draw.ids,
                draw.weights[:, 0],
                now.rows(side, draw.ids),
                run.factors[side][draw.ids],
            )
            shadow.estimator.update(rows)

    def _measure(self, run: Step, now: Embeddings, step: int) -> None:
        truths = {side: Truth.of(run.population(now, side)) for side in SIDES}
        estimators_by_name: dict[str, Mapping[str, GramianEstimator]] = {
            name: {side: shadow.estimator for side, shadow in shadows.items()}
            for name, shadows in self._shadows.items()
        }
        if all(run.estimators[side] for side in SIDES):
            estimators_by_name[OWN] = {side: run.estimators[side][0] for side in SIDES}
        self.steps.append(step)
        for name, estimators in estimators_by_name.items():
            estimates = {side: e.moment().dense for side, e in estimators.items()}
            errors = [gramian_error(estimates[side], truths[side]) for side in SIDES]
            self.gramian_errors.setdefault(name, []).append(fmean(errors))
            self.gradient_errors.setdefault(name, []).append(gradient_error(estimates, truths))


class TensorBoard(Callback):
    """Writes the objective, metrics, Gramian errors and histograms of scores for TensorBoard.

    Args:
        folder: a separate one for each run.
        pairs: the observed pairs, int64 [n] rows of queries and of candidates.
        tracking: a callback that runs before this one, whose errors are also written.
    Raises: TrainingError: the extra `tensorboard` is not installed.
    """

    def __init__(
        self, folder: Path, pairs: tuple[Tensor, Tensor], tracking: Tracking | None = None
    ) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise TrainingError(
                "TensorBoard is not installed; pip install 'evergram[tensorboard]'."
            ) from None
        self.writer: SummaryWriter = SummaryWriter(str(folder))
        self.pairs = pairs
        self.tracking = tracking
        self.written: int = 0

    def on_step(self, run: Trainer, batch: Batch, objective: Tensor) -> None:
        if run.steps % OBJECTIVES == 0:
            self._scalar("objective", float(objective), run.steps)
        if (tracking := self.tracking) is None:
            return
        errors_of = {"Gramian": tracking.gramian_errors, "gradient": tracking.gradient_errors}
        for i in range(self.written, len(tracking.steps)):
            for what, errors in errors_of.items():
                for name, values in errors.items():
                    self._scalar(f"{what} error/{name}", values[i], tracking.steps[i])
        self.written = len(tracking.steps)

    def on_evaluation(self, run: Trainer, record: Mapping[str, float]) -> None:
        for name, value in record.items():
            if name not in ("epoch", "seconds", "objective"):
                self._scalar(name, value, run.steps)
        now = run.step.encoder.embed_all(run.step.scene)
        query, candidate = (now[side].cpu() for side in SIDES)
        draw = torch.Generator().manual_seed(0)
        chosen = torch.randint(len(self.pairs[0]), (SCORES,), generator=draw)
        random = [
            torch.randint(len(side), (SCORES,), generator=draw) for side in (query, candidate)
        ]
        for name, (rows, columns) in {
            "observed": [rows[chosen] for rows in self.pairs],
            "random": random,
        }.items():
            scores = (query[rows] * candidate[columns]).sum(1)
            self.writer.add_histogram(f"scores/{name}", scores, run.steps)

    def on_end(self, run: Trainer) -> None:
        self.writer.close()

    def _scalar(self, name: str, value: float, step: int) -> None:
        self.writer.add_scalar(name, value, step)


# Rows per block that is converted to float64.
ROWS = 65_536
WITHOUT_GRAMIAN = (
    "This version is trained without a Gramian (task.penalty is 0), so its error cannot be "
    "measured; --set task.penalty=VALUE measures it for another penalty."
)


@dataclass
class Diagnosis:
    """The result of `diagnose`.

    Args:
        sides: for each side ("query", "candidate") `entities`, `dim`, `effective_rank`,
            `largest_share` (of the eigenvalues' sum), `norm_mean` and `norm_deviation`.
        histograms: scores under the published embeddings, of observed and of random pairs.
        tracking: errors of all estimators over the first steps of the version's training; None if
            it is trained without a Gramian.
        own: description of "this run"'s estimator: its kind and batch size.
        left_out: a sentence on why `tracking` is None.
    """

    version: int
    sides: dict[str, dict[str, float]]
    histograms: Histograms
    tracking: Tracking | None
    own: str = OWN
    left_out: str = ""

    @property
    def gramian_error(self) -> dict[str, float]:
        """‖Ĝ − G‖ / ‖G‖ by estimator, averaged over the second half of the steps, if tracked."""
        tracking = self.tracking
        return {} if tracking is None else tracking.mean(tracking.gramian_errors)

    @property
    def gradient_error(self) -> dict[str, float]:
        """‖∇ĝ − ∇g‖ / ‖∇g‖ by estimator, likewise."""
        tracking = self.tracking
        return {} if tracking is None else tracking.mean(tracking.gradient_errors)

    def as_json(self) -> dict[str, Any]:
        """Return what `evergram diagnose --json` prints (docs/commands.md)."""
        histograms, tracking = self.histograms, self.tracking
        return {
            "version": self.version,
            "sides": self.sides,
            "scores": {
                "edges": histograms.edges.tolist(),
                "observed": histograms.observed.tolist(),
                "random": histograms.random.tolist(),
                "observed_mean": histograms.means[0],
                "random_mean": histograms.means[1],
                "separation": histograms.separation,
            },
            "this_run": self.own if tracking else None,
            "steps": tracking.steps if tracking else [],
            "gramian_errors": tracking.gramian_errors if tracking else {},
            "gradient_errors": tracking.gradient_errors if tracking else {},
            "mean_gramian_error": self.gramian_error,
            "mean_gradient_error": self.gradient_error,
            "left_out": self.left_out or None,
        }


def rivals(
    batch_sizes: list[int], own: EstimatorSettings | None = None
) -> dict[str, EstimatorSettings]:
    """Return the settings of every estimator for each batch size, by display name; with the
    recipe's `own` if it is not one of the package's kinds."""
    samplers, betas = ("uniform", "sqrt", "linear"), ("1/n", "1")
    settings: dict[str, dict[str, Any]] = {
        **{f"sampled, {name}": {"kind": "sampled", "sampler": name} for name in samplers},
        **{f"sogram {rate}": {"rate": rate} for rate in (0.1, 0.05, 0.02, "auto")},
        **{f"sagram {beta}": {"kind": "sagram", "beta": beta} for beta in betas},
    }
    others: dict[str, EstimatorSettings] = {}
    for size in batch_sizes:
        draws = {"sampler": "uniform", "batch_size": size}
        for name, values in settings.items():
            others[f"{name}, |B| = {size}"] = ESTIMATORS.of(draws | values)
        if isinstance(own, BatchEstimatorSettings) and own.kind not in ESTIMATORS.own:
            name = f"{own.kind}, |B| = {size}"
            others[name] = own.model_copy(update=draws)
    return others


def diagnose(
    recipe: Recipe,
    lineage: Lineage,
    corpus: Corpus | None = None,
    *,
    encoder: EncoderModules | None = None,
    steps: int = 200,
    batch_sizes: list[int] | None = None,
    device: str = "auto",
    progress: Progress | bool = True,
) -> Diagnosis:
    """Measure the newest version as published, and repeat the first steps of its training to
    measure the Gramian estimators.

    Args:
        corpus: None loads the recipe's data.
        encoder: your own modules that it was trained with, if any.
        steps: number of training steps; errors are measured at 20 of them.
        batch_sizes: entities per step that each estimator learns from; by default 128 and 1024.
    Raises: DataError, RecipeError: the data has changed, or the version needs `corpus`.
        LineageError, ShapeError: `encoder` is missing or is not the version's.
    """
    version = lineage.newest
    corpus = corpus_for(recipe, corpus, lineage)
    split = split_for(recipe, corpus, version, lineage.pair_history)
    training = split.training
    load_encoder(lineage, version, encoder)  # raises if modules are missing or wrong
    published = final_split(split, refits=recipe.refits).training
    sides, histograms = _of_published(recipe, lineage, published)
    own = None if encoder is None else ModuleEncoder.of(encoder, training)
    settings = FitSettings.of(recipe, training, version)
    torch_device = pick_device(device, recipe.training.tables)
    step, sampler, draws = prepare(settings, training, torch_device, Companions(own=own))
    if not step.objective.wants_moments:
        return Diagnosis(version, sides, histograms, None, left_out=WITHOUT_GRAMIAN)
    tracking = Tracking(
        rivals(batch_sizes or [128, 1024], recipe.gramian),
        {side: training.counts(side) for side in SIDES},
        every=max(1, steps // 20),
        seed=recipe.seed,
    )
    callbacks = [tracking, ProgressReport(Progress.of_choice(progress), "diagnose", steps)]
    run = Trainer(step, sampler, draws, callbacks=callbacks, seed=settings.version_seed)
    run.fit(steps=steps)
    batch_size = ""
    if isinstance(recipe.gramian, BatchEstimatorSettings):
        drawn = recipe.gramian.batch_size if draws is not None else None
        batch_size = f", |B| = {drawn or sampler.batch_size}"
    own_name = f"{recipe.gramian.kind} ({OWN}{batch_size})"
    return Diagnosis(version, sides, histograms, tracking, own_name)


def _of_published(
    recipe: Recipe, lineage: Lineage, corpus: Corpus
) -> tuple[dict[str, dict[str, float]], Histograms]:
    """Return statistics of each side's stored embeddings in the newest version, and histograms of
    scores. Raises: DataError: the corpus lacks entities of the version."""
    vectors, sides, stored_rows = {}, {}, {}
    for side, entities in corpus.sides.items():
        ids, vectors[side] = lineage.embeddings(side, lineage.newest)
        rows = entities.vocabulary.rows(ids)
        if bool((rows < 0).any()):
            raise DataError(
                f"The data lacks {int((rows < 0).sum()):,} of the {len(ids):,} {side} ids of "
                f"version {lineage.newest}; give the data that it was trained on."
            )
        measures, counts = recipe.task.measures_of(side), corpus.counts(side)
        share = build_measures(measures, counts, entities.vocabulary)[:, 0][rows]
        shares, norms = spectrum(vectors[side], share), vectors[side].double().norm(dim=1)
        sides[side] = {
            "entities": len(ids),
            "dim": vectors[side].shape[1],
            "effective_rank": effective_rank(shares),
            "largest_share": float(shares.max()),
            "norm_mean": float(norms.mean()),
            "norm_deviation": float(norms.std()) if len(norms) > 1 else 0.0,
        }
        stored_rows[side] = torch.full((len(entities),), -1)
        stored_rows[side][rows] = torch.arange(len(rows))
    query, candidate = (stored_rows[side][corpus.column(side)] for side in SIDES)
    stored = (query >= 0) & (candidate >= 0)
    pairs = query[stored], candidate[stored]
    return sides, score_histograms(vectors["query"], vectors["candidate"], pairs, seed=recipe.seed)


def spectrum(vectors: Tensor, share: Tensor) -> Tensor:
    """Return the eigenvalues of Σ p_a u_a ⊗ u_a as shares of their sum, ascending, float64 [D], for
    vectors u [N, D] and a measure p [N]."""
    moment = torch.zeros(vectors.shape[1], vectors.shape[1], dtype=torch.float64)
    for start in range(0, len(vectors), ROWS):
        block, weights = vectors[start : start + ROWS], share[start : start + ROWS]
        wide = block.double()
        moment += (wide * weights[:, None]).T @ wide
    values = torch.linalg.eigvalsh(moment).clamp(min=0)
    total: Tensor = values.sum().clamp(min=1e-300)
    shares: Tensor = values / total
    return shares


def effective_rank(shares: Tensor) -> float:
    """Return exp(entropy) of eigenvalue shares [D], between 1 and D."""
    return float((-(shares * shares.clamp(min=1e-300).log()).sum()).exp())
