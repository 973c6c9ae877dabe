"""The interface of tasks: losses on observed pairs, to which `Objective` adds its terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evergram.data.sampling import Batch
from evergram.gramian.estimator import Moment

# For each side, one moment a measure.
Moments = Mapping[str, list[Moment]]


@dataclass(frozen=True)
class Spread:
    """Weighted rows that stand for all entities of one side, for terms that are not of pairs.

    Args:
        rows: [M, D].
        weight: [M, R], μ with mean(μ u⊗u) the Gramian of each measure, in expectation.
        factors: [M, K], rows of the prior; None without a prior.
    """

    rows: Tensor
    weight: Tensor
    factors: Tensor | None = None

    @classmethod
    def part(cls, rows: Tensor, weight: Tensor, factors: Tensor | None, portion: float) -> Spread:
        """Return some of the rows, which count for a portion of the mean over all."""
        if portion != 1:
            weight = weight.to(torch.promote_types(weight.dtype, rows.dtype)) * portion
        return cls(rows, weight, factors)


@dataclass(frozen=True)
class Encoded:
    """The embeddings of a batch, for a loss.

    Args:
        query, candidate: [B, D], as the loss of a pair sees them.
        negative: [B, D], embeddings of `Batch.negative`; or None.
        query_factors, candidate_factors: [B, K], rows of the prior; None without a prior.
        everyone: all entities of each side, if their embeddings are computed anyway; None lets the
            batch stand for them.
        all_candidates: [N, D], differentiable, for tasks that want them; else None.
        portion: what these pairs count for in the whole batch's loss; below 1 where processes share
            the batch. Weights of `everyone` contain theirs.
        whole_query: [B, D], the queries' rows as all but a pair's own loss sees them, where `query`
            is made without the pair's candidate; None where both are the same.
    """

    query: Tensor
    candidate: Tensor
    negative: Tensor | None = None
    query_factors: Tensor | None = None
    candidate_factors: Tensor | None = None
    everyone: Mapping[str, Spread] | None = None
    portion: float = 1.0
    all_candidates: Tensor | None = None
    whole_query: Tensor | None = None

    @property
    def queries(self) -> Tensor:
        """The queries' rows, [B, D], with all of their candidates in them."""
        return self.query if self.whole_query is None else self.whole_query

    def spread(self, batch: Batch) -> Mapping[str, Spread]:
        """Return the rows that stand for all entities of each side."""
        if self.everyone is not None:
            return self.everyone
        return {
            "query": Spread.part(
                self.queries, batch.query_weight, self.query_factors, portion=self.portion
            ),
            "candidate": Spread.part(
                self.candidate, batch.candidate_weight, self.candidate_factors, portion=self.portion
            ),
        }


class Task(nn.Module, ABC):
    """The loss of a batch's observed pairs; any state is in buffers."""

    # True if training must provide negatives in the batch; the mean embedding as the last column
    # of the moments; the embeddings of all candidates.
    wants_negatives = False
    wants_means = False
    wants_all_candidates = False
    # True if the loss is a mean over pairs, each of its own rows and the moments alone, without
    # state: processes that share a batch then need not show each other their rows.
    is_mean_of_pairs = False
    # True if products of queries and all candidates may be in bfloat16, summed in float32.
    lower_products = False

    @abstractmethod
    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        """Return the loss, a scalar.

        Args:
            moments: of each side, one for each measure; detached.
        """


def score(encoded: Encoded) -> Tensor:
    """Return ⟨u, v⟩ of each observed pair, [B]."""
    return (encoded.query * encoded.candidate).sum(-1)
