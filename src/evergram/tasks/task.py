"""The interface of tasks: the loss on observed pairs, to which an objective adds."""

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
    """Rows that stand for all entities of one side, where pairs do not matter.

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
        everyone: of each side, all entities, if their embeddings are computed anyway; None lets
            the batch stand for them.
    """

    query: Tensor
    candidate: Tensor
    negative: Tensor | None = None
    query_factors: Tensor | None = None
    candidate_factors: Tensor | None = None
    everyone: Mapping[str, Spread] | None = None

    def spread(self, batch: Batch) -> Mapping[str, Spread]:
        """Return the rows that stand for all entities of each side."""
        if self.everyone is not None:
            return self.everyone
        return {
            "query": Spread(self.query, batch.query_weight, self.query_factors),
            "candidate": Spread(self.candidate, batch.candidate_weight, self.candidate_factors),
        }


class Task(nn.Module, ABC):
    """The loss of a batch's observed pairs; state, where there is any, is in buffers."""

    # What training must provide: negatives in the batch; the mean embedding, as the moments' last
    # column.
    wants_negatives = False
    wants_means = False

    @abstractmethod
    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        """Return the loss, a scalar.

        Args:
            moments: of each side, one a measure; detached.
        """


def score(encoded: Encoded) -> Tensor:
    """Return ⟨u, v⟩ of each observed pair, [B]."""
    return (encoded.query * encoded.candidate).sum(-1)
