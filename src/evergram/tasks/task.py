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
class Encoded:
    """A batch as the loss sees it.

    Args:
        query, candidate: [B, D].
        negative: [B, D], embeddings of `Batch.negative`; or None.
        query_factors, candidate_factors: [B, K], rows of the prior; None without a prior.
    """

    query: Tensor
    candidate: Tensor
    negative: Tensor | None = None
    query_factors: Tensor | None = None
    candidate_factors: Tensor | None = None


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
