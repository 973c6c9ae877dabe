"""What an encoder is trained for: the loss on observed pairs, which an objective adds to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from evergram.data.sampling import Batch
from evergram.gramian.estimator import Moment

# For each side, one moment a measure.
Moments = Mapping[str, list[Moment]]


@dataclass(frozen=True)
class Spread:
    """One side's rows that stand for all its entities where pairs are not looked at.

    Args:
        rows: [M, D].
        weight: [M, R], μ with mean(μ u⊗u) the Gramian of each measure, in expectation.
        factors: [M, K], rows of the prior; None without a prior.
    """

    rows: Tensor
    weight: Tensor
    factors: Tensor | None = None


@dataclass(frozen=True)
class Encoded:
    """A batch as the loss sees it.

    Args:
        query, candidate: [B, D].
        negative: [B, D], embeddings of `Batch.negative`; or None.
        query_factors, candidate_factors: [B, K], rows of the prior; None without a prior.
        everyone: of each side, all entities, where their embeddings are there anyway; else the
            batch stands for them.
    """

    query: Tensor
    candidate: Tensor
    negative: Tensor | None = None
    query_factors: Tensor | None = None
    candidate_factors: Tensor | None = None
    everyone: Mapping[str, Spread] | None = None

    def spread(self, batch: Batch) -> Mapping[str, Spread]:
        """What stands for all entities of each side."""
        if self.everyone is not None:
            return self.everyone
        return {
            "query": Spread(self.query, batch.query_weight, self.query_factors),
            "candidate": Spread(self.candidate, batch.candidate_weight, self.candidate_factors),
        }


class Task(nn.Module, ABC):
    """The loss of a batch's observed pairs; state, where there is any, is in buffers."""

    # What the loop must provide: negatives in the batch; the mean embedding in the moments, as
    # their last column.
    wants_negatives = False
    wants_means = False

    @abstractmethod
    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        """Scalar."""


def score(encoded: Encoded) -> Tensor:
    """⟨u, v⟩ of each observed pair, [B]."""
    return (encoded.query * encoded.candidate).sum(-1)
