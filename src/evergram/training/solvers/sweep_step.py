"""A sweep of alternating least squares in the place of a gradient step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from evergram.data.sampling import Batch, Draw, ExampleSampler
from evergram.encoders.features import SIDES
from evergram.training.solvers.sweep_solver import PairSquares, SweepSolver
from evergram.training.step import Step


@dataclass
class SweepStep(Step):
    """Moves all rows of a factorization's tables in each call: queries, then candidates.

    It has no state beside the tables, so that a checkpoint of them resumes the run.

    Args:
        sampler: has all pairs; the batches of its epochs are not looked at.
    """

    sampler: ExampleSampler = field(kw_only=True)

    def __call__(
        self,
        batch: Batch,
        draws: Mapping[str, Draw] | None = None,
        upcoming: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Return the objective's value after a sweep.

        Raises: TrainingError: the objective has no minimum.
        """
        value = self.solver.sweep(self.tables)
        return value.to(self.tables["query"])

    @cached_property
    def solver(self) -> SweepSolver:
        """It groups the pairs in its first sweep, as part of training."""
        return SweepSolver(squares_of(self, self.sampler))

    @property
    def tables(self) -> dict[str, Tensor]:
        """The rows of both sides, which a sweep writes into."""
        return {side: getattr(self.encoder, side).weight.detach() for side in SIDES}


def squares_of(step: Step, sampler: ExampleSampler) -> PairSquares:
    """Return what the mean of `step.objective` over an epoch estimates, in closed form.

    Args:
        step, sampler: of a run that can be solved; of all entities the table has
            a row, in their order.
    """
    objective, device = step.objective, step.encoder.device
    n = len(sampler.query)
    measures, norms = {}, {}
    for side, pairs in (("query", sampler.query), ("candidate", sampler.candidate)):
        # Entities without a pair are in no batch, so no step pushes them, whatever their measure.
        met = sampler.rates[side] > 0
        measures[side] = torch.where(met[:, None], sampler.measures[side], 0.0).to(device)
        counts = torch.bincount(pairs, minlength=len(met)).double() / n
        shares = measures[side][:, 0] if objective.l2_measure == "penalty" else counts.to(device)
        norms[side] = objective.l2 * shares
    weight = sampler.pair_weight
    return PairSquares(
        {"query": sampler.query.to(device), "candidate": sampler.candidate.to(device)},
        (torch.ones(n) if sampler.target is None else sampler.target).to(device),
        None if weight is None else weight.to(device),
        measures,
        objective.penalty,
        {side: step.factors[side][:, : step.prior] for side in SIDES},
        norms,
    )
