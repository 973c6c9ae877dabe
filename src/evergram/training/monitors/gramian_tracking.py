"""Measure estimators against the exact Gramian while a training runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from evergram.data.sampling import Batch, Draw, EntitySampler
from evergram.encoders.encoder import Embeddings
from evergram.encoders.features import SIDES
from evergram.evaluation.gramian_error import Truth, gradient_error, gramian_error
from evergram.gramian.estimator import EntityBatch, GramianEstimator
from evergram.training.callbacks import Callback, Point
from evergram.training.recipe import GramianRecipe
from evergram.training.step import Step

# The name of the run's own estimator in the records.
OWN = "this run"


@dataclass
class _Shadow:
    """One side of an estimator that learns from entities of its own."""

    estimator: GramianEstimator
    draws: Iterator[Draw]
    upcoming: Draw | None = None
    before: Tensor | None = None


class Tracking(Callback):
    """Gramian error and gradient error along one trajectory, of the run's own estimator and others.

    The others change nothing: each draws entities apart, embeds them with the run's parameters and
    is measured as it would be used for the next step. The first measure counts.

    Args:
        rivals: settings by name; `sampler` and `batch_size` say what each learns from.
        counts: int64 [N] of each side, interactions.
        every: steps between two measures; each is a pass over all entities.
        seed: of the draws.
    Source: [G2] Fig. 2 and 6.
    """

    def __init__(
        self,
        rivals: Mapping[str, GramianRecipe],
        counts: Mapping[str, Tensor],
        *,
        every: int = 20,
        seed: int = 0,
    ) -> None:
        self.rivals = dict(rivals)
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
        if not self.rivals and not measured:
            return
        with run.look() as now:
            if not self._shadows:
                self._shadows = {n: self._shadow(run, now, s) for n, s in self.rivals.items()}
            for shadows in self._shadows.values():
                for side, shadow in shadows.items():
                    self._follow(run, now, side, shadow, at.device)
            if measured:
                self._measure(run, now, at.step)

    def mean(self, errors: Mapping[str, list[float]]) -> dict[str, float]:
        """Return the mean over the second half of the measures, by name; the start is left out."""
        return {
            name: fmean(values[len(values) // 2 :]) for name, values in errors.items() if values
        }

    def _shadow(self, run: Step, now: Embeddings, settings: GramianRecipe) -> dict[str, _Shadow]:
        shadows: dict[str, _Shadow] = {}
        for i, side in enumerate(SIDES):
            measures = run.measures[side][:, :1]
            factors = run.factors[side]
            estimator = settings.chosen.build(run.encoder.dim, measures[:, 0], factors.cpu()).to(
                factors.device
            )
            estimator.begin(run.population(now, side))
            draws = EntitySampler(
                self.counts[side],
                measures,
                kind=settings.sampler,
                batch_size=settings.batch_size or 1024,
                seed=self.seed + i,
            )
            shadows[side] = _Shadow(estimator, draws.epoch(0, 1 << 40))
        return shadows

    def _follow(
        self, run: Step, now: Embeddings, side: str, shadow: _Shadow, device: torch.device
    ) -> None:
        draw = shadow.upcoming or next(shadow.draws).to(device)
        rows = EntityBatch(
            draw.ids,
            draw.weights[:, 0],
            now.rows(side, draw.ids),
            run.factors[side][draw.ids],
            shadow.before,
        )
        shadow.estimator.begin(run.population(now, side))
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
