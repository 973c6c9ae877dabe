"""The softmax over all candidates, exactly."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evergram.data.sampling import Batch
from evergram.errors import DataError
from evergram.tasks.candidate_neighbours import CandidateNeighbours
from evergram.tasks.log_partition import log_partition_sum
from evergram.tasks.task import Encoded, Moments, Task, score

# Where a learned temperature begins, and the least that it may be.
START, LEAST = 0.1, 0.01


class SoftmaxAll(Task):
    """Cross entropy of each pair's candidate among all candidates: no negatives are sampled.

    A pair (a, b) costs −s_ab/τ + κ log Z_a, where Z_a is the sum of e^{s/τ} over all
    candidates, computed once for each different query of the batch. The loss is the sum over the
    batch's pairs, divided by how many a batch has on average.

    Args:
        temperature: τ; None makes it a parameter, which begins at `START`; only for unit rows.
        push: κ, how much the log-partition counts beside the pairs' scores; 1 is the softmax.
        largest_share: q, which no candidate's share of a query's softmax is above; None is no
            limit. There must be more than 1/q candidates.
        neighbours, neighbour_share: K and ε: a pair's score is (1 − ε) s_ab + ε Σ_c K_bc s_ac, so
            that candidates which the same queries met are pulled, too.
        lower_products: multiply the batch's queries and all candidates in bfloat16, with sums in
            float32, where the processor can.
    Source: docs/method.md, "The softmax over all candidates", and the sections below it. κ: the
        code of Wu et al. 2024, where it is the ratio of two temperatures.
    """

    wants_all_candidates = True
    is_mean_of_pairs = True

    def __init__(
        self,
        temperature: float | None = 1.0,
        *,
        push: float = 1.0,
        largest_share: float | None = None,
        neighbours: CandidateNeighbours | None = None,
        neighbour_share: float = 0.0,
        lower_products: bool = False,
    ) -> None:
        super().__init__()
        self._fixed = temperature
        self.log_temperature: nn.Parameter | None = None
        if temperature is None:
            self.log_temperature = nn.Parameter(torch.tensor(START).log())
        self.push = push
        self.largest_share = largest_share
        self.neighbours = neighbours
        self.neighbour_share = neighbour_share
        self.lower_products = lower_products

    @property
    def temperature(self) -> float:
        """τ, as it is now."""
        tau = self._tau()
        return float(tau.detach()) if isinstance(tau, Tensor) else tau

    def _tau(self) -> Tensor | float:
        """τ; a learned one with its gradient."""
        if self._fixed is not None:
            return self._fixed
        assert self.log_temperature is not None
        return self.log_temperature.exp().clamp(min=LEAST)

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        assert encoded.all_candidates is not None
        if self.largest_share is not None:
            check_share(self.largest_share, len(encoded.all_candidates))
        _, own, times = torch.unique(batch.query, return_inverse=True, return_counts=True)
        # The first pair of each query has the query's row.
        first = torch.argsort(own, stable=True)[times.cumsum(0) - times]
        weight = times.to(encoded.query)
        if batch.pair_share is not None:
            weight = weight * batch.pair_share[first].to(weight)
        tau, queries, fixed = self._tau(), encoded.queries[first], self._fixed
        if fixed is None:  # τ has its gradient by way of the queries
            queries, fixed = queries / tau, 1.0
        pushed = log_partition_sum(
            queries,
            encoded.all_candidates,
            weight,
            fixed,
            largest_share=self.largest_share,
            lower_products=self.lower_products,
        )
        scores = self._scores(encoded, batch)
        mean = scores.new_zeros(len(times)).index_add(0, own, scores) / times
        pulled = (weight * (mean / tau)).sum()
        loss: Tensor = (self.push * pushed - pulled) / len(batch.query)
        return loss

    def _scores(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Return what pulls each pair together, [B]: its score, or that with its neighbours'."""
        own = score(encoded)
        if self.neighbours is None:
            return own
        assert encoded.all_candidates is not None
        spread = self.neighbours(encoded.all_candidates)[batch.candidate]
        return torch.lerp(own, (encoded.query * spread).sum(-1), self.neighbour_share)


def check_share(share: float, candidates: int) -> None:
    """Check that shares of at most so much can add up to one. Raises: DataError."""
    if share * candidates <= 1:
        raise DataError(
            f"task.largest_share is {share:g}, and {candidates:,} candidates of at most that share "
            f"do not make a whole; it must be above 1/{candidates:,} and below 1, such as "
            f"{min(2 / candidates, (1 + 1 / candidates) / 2):.2g}."
        )
