"""The softmax over all candidates, exactly."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evergram.data.sampling import Batch
from evergram.errors import DataError
from evergram.tasks.candidate_neighbours import CandidateNeighbours
from evergram.tasks.partition.log_partition import log_partition_sum
from evergram.tasks.task import Encoded, Moments, Task, score

# Where a learned temperature begins, and the least that it may be.
START, LEAST = 0.1, 0.01


class SoftmaxAll(Task):
    """Cross entropy of each pair's candidate among all candidates: no negatives are sampled.

    A pair (a, b) costs w_a (−s_ab/τ + κ log Z_a), where Z_a is the sum of e^{s/τ} over all
    candidates, computed once for each different query of the batch. The loss is the sum over the
    batch's pairs, divided by how many a batch has on average.

    Args:
        temperature: τ; None makes it a parameter, which begins at `START`; only for unit rows.
        positive_temperature: τ₊ of the bilateral softmax: the m scores of a query's pairs enter as
            τ₊ log((1/m) Σ e^{s/τ₊}) in place of their mean, which is its limit for large τ₊; None
            is the mean. The batch must have all pairs of its queries.
        excludes_observed: True leaves a query's own pairs out of Z_a. The batch must have all of
            them. A query that met every candidate then has no Z_a, and is pulled only.
        query_weight: float32 [N] of all queries, w; None is one for each.
        push: κ, how much the log-partition counts beside the pairs' scores; 1 is the softmax.
        largest_share: q, which no candidate's share of a query's softmax is above; None is no
            limit. There must be more than 1/q candidates, and `excludes_observed` be False.
        neighbours, neighbour_share: K and ε: a pair's score is (1 − ε) s_ab + ε Σ_c K_bc s_ac, so
            that candidates which the same queries met are pulled, too; not with τ₊.
        lower_products: multiply the batch's queries and all candidates in bfloat16, with sums in
            float32, where the processor can.
    Source: docs/method.md, "The softmax over all candidates", and the sections below it. The two
        temperatures, and κ: Wu et al. 2024, Eq. (18), and the authors' code, where κ is their
        ratio.
    """

    wants_all_candidates = True

    def __init__(
        self,
        temperature: float | None = 1.0,
        *,
        positive_temperature: float | None = None,
        excludes_observed: bool = False,
        query_weight: Tensor | None = None,
        push: float = 1.0,
        largest_share: float | None = None,
        neighbours: CandidateNeighbours | None = None,
        neighbour_share: float = 0.0,
        lower_products: bool = False,
    ) -> None:
        super().__init__()
        if neighbours is not None and positive_temperature is not None:
            raise ValueError("A second temperature is of a query's own pairs, without neighbours.")
        if largest_share is not None and excludes_observed:
            raise ValueError("A largest share is of all candidates; observed ones are excluded.")
        self._fixed = temperature
        self.log_temperature: nn.Parameter | None = None
        if temperature is None:
            self.log_temperature = nn.Parameter(torch.tensor(START).log())
        self.push = push
        self.largest_share = largest_share
        self.neighbours = neighbours
        self.neighbour_share = neighbour_share
        self.lower_products = lower_products
        self.positive_temperature = positive_temperature
        self.excludes_observed = excludes_observed
        # Elsewhere a query's pairs may be shared out among processes.
        self.is_mean_of_pairs: bool = positive_temperature is None and not excludes_observed
        self.query_weight: Tensor | None
        self.register_buffer("query_weight", query_weight, persistent=False)

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
        ids, own, times = torch.unique(batch.query, return_inverse=True, return_counts=True)
        # The first pair of each query has the query's row.
        first = torch.argsort(own, stable=True)[times.cumsum(0) - times]
        excluded = (own, batch.candidate) if self.excludes_observed else None
        weight = times.to(encoded.query)
        if self.query_weight is not None:
            weight = weight * self.query_weight[ids].to(weight)
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
            excluded,
            largest_share=self.largest_share,
            lower_products=self.lower_products,
        )
        pulled = (weight * (self._pull(self._scores(encoded, batch), own, times) / tau)).sum()
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

    def _pull(self, scores: Tensor, own: Tensor, times: Tensor) -> Tensor:
        """Return the mean of each query's scores, or τ₊ times their log-mean-exp at τ₊, [Q]."""
        zeros = scores.new_zeros(len(times))
        if self.positive_temperature is None:
            total = zeros.index_add(0, own, scores)
            return total / times
        logits = scores / self.positive_temperature
        most = zeros.scatter_reduce(0, own, logits.detach(), "amax", include_self=False)
        total = zeros.index_add(0, own, (logits - most[own]).exp())
        mean = most + (total / times).log()
        return mean * self.positive_temperature


def check_share(share: float, candidates: int) -> None:
    """Check that shares of at most so much can add up to one. Raises: DataError."""
    if share * candidates <= 1:
        raise DataError(
            f"task.largest_share is {share:g}, and {candidates:,} candidates of at most that share "
            f"do not make a whole; it must be above 1/{candidates:,} and below 1, such as "
            f"{min(2 / candidates, (1 + 1 / candidates) / 2):.2g}."
        )


def query_weights(counts: Tensor, power: float) -> Tensor | None:
    """Return w_a ∝ count_a^-power with mean one over all pairs, float32 [N]; None for power 0.

    Args:
        counts: int64 [N], pairs of each query; one without any has weight zero.
    """
    if not power:
        return None
    weight = torch.where(counts > 0, counts.double().clamp(min=1) ** -power, 0.0)
    return (weight * (counts.sum() / (weight * counts).sum())).float()
