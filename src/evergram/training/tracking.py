"""Measure estimators against the exact Gramian while a training runs, and write what a training
does for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from evergram.data.sampling import Batch, Draw, entity_sampler
from evergram.encoders.encoder import Embeddings
from evergram.encoders.features import SIDES
from evergram.errors import TrainingError
from evergram.evaluation.gramian_error import (
    Truth,
    gradient_error,
    gramian_error,
)
from evergram.gramian.estimator import EntityBatch, GramianEstimator
from evergram.gramian.kinds import BatchEstimatorSettings, EstimatorSettings, SOGramSettings
from evergram.training.callbacks import Callback, Point
from evergram.training.step import Step

# The name of the run's own estimator in the records.
OWN = "this run"
# Steps between two values of the objective in TensorBoard.
OBJECTIVES = 20
# Pairs of a histogram of scores in TensorBoard.
SCORES = 100_000


@dataclass
class _Shadow:
    """One side of an estimator that learns from entities of its own."""

    estimator: GramianEstimator
    draws: Iterator[Draw]
    upcoming: Draw | None = None
    before: Tensor | None = None


class Tracking(Callback):
    """Gramian error and gradient error along one trajectory, of the run's own estimator and others.

    The others do not change the run: each draws entities apart, embeds them with the run's
    parameters and is measured as it would be used for the next step; one with a cache is also shown
    the pairs of the run's step. The first measure counts. A resumed run is measured anew, from
    where it goes on.

    Args:
        rivals: settings by name; `sampler` and `batch_size` say what each learns from.
        counts: int64 [N] of each side, interactions.
        every: steps between two measures; each is a pass over all entities.
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
        # By name, one entry a measure.
        self.gramian_errors: dict[str, list[float]] = {}
        self.gradient_errors: dict[str, list[float]] = {}
        self._shadows: dict[str, dict[str, _Shadow]] = {}

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        run = at.training
        measured = at.step % self.every == 0
        if not (self.rivals or measured):
            return
        with run.look() as now:
            if not self._shadows:
                self._shadows = {
                    name: self._shadow(run, now, settings) for name, settings in self.rivals.items()
                }
            for shadows in self._shadows.values():
                self._follow(run, now, shadows, batch.to(at.device))
            if measured:
                self._measure(run, now, at.step)

    @staticmethod
    def mean(errors: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Return the mean over the second half of the measures, by name; the start is left out."""
        return {name: fmean(each[len(each) // 2 :]) for name, each in errors.items() if each}

    def _shadow(
        self, run: Step, now: Embeddings, settings: EstimatorSettings
    ) -> dict[str, _Shadow]:
        """Return an estimator of each side, as new."""
        shadows: dict[str, _Shadow] = {}
        # One that looks at every entity is shown batches all the same.
        draws_by = settings if isinstance(settings, BatchEstimatorSettings) else SOGramSettings()
        for i, side in enumerate(SIDES):
            measures, factors = run.measures[side][:, :1], run.factors[side]
            estimator = settings.build(run.encoder.dim, measures[:, 0], factors.cpu())
            estimator.to(factors.device)
            estimator.begin(run.population(now, side))
            draws = entity_sampler(
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
            draws[side] = shadow.upcoming or next(shadow.draws).to(device)
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
                shadow.before,
            )
            shadow.estimator.update(rows)
            if shadow.estimator.wants_before:
                shadow.upcoming = next(shadow.draws).to(device)
                shadow.before = now.rows(side, shadow.upcoming.ids)

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
            self.gradient_errors.setdefault(name, []).append(
                gradient_error(estimates, truths, run.prior)
            )


class TensorBoard(Callback):
    """Writes the objective, metrics, errors of the Gramians and scores of pairs to a folder.

    Args:
        folder: one a run; `tensorboard --logdir` shows all the folders below the one it names.
        pairs: the observed pairs, int64 [n] rows of queries and of candidates.
        tracking: a callback that runs before this one; its errors are written too.
    Raises: TrainingError: the extra is not installed.
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

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        if at.step % OBJECTIVES == 0:
            self._scalar("objective", float(objective), at.step)
        if (tracking := self.tracking) is None:
            return
        measured = {"Gramian": tracking.gramian_errors, "gradient": tracking.gradient_errors}
        for place in range(self.written, len(tracking.steps)):
            for what, errors in measured.items():
                for name, values in errors.items():
                    self._scalar(f"{what} error/{name}", values[place], tracking.steps[place])
        self.written = len(tracking.steps)

    def on_evaluation(self, at: Point, record: Mapping[str, float]) -> None:
        for name, value in record.items():
            if name not in ("epoch", "seconds", "objective"):
                self._scalar(name, value, at.step)
        now = at.training.encoder.embed_all(at.training.scene)
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
            self.writer.add_histogram(f"scores/{name}", scores, at.step)

    def on_end(self, at: Point) -> None:
        self.writer.close()

    def _scalar(self, name: str, value: float, step: int) -> None:
        self.writer.add_scalar(name, value, step)
