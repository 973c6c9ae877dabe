"""How often candidates were met in training, as a factor of their published vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn


def popularity_factors(counts: Tensor, exponent: float) -> Tensor:
    """Return max(count, 1)^γ, float32 of the shape of `counts`; computed in float64.

    >>> import torch
    >>> from evergram.encoders.popularity_factor import popularity_factors
    >>> popularity_factors(torch.tensor([0, 1, 100]), 0.5)
    tensor([ 1.,  1., 10.])

    Args:
        counts: training pairs of each candidate; one that was never met counts as if met once.
        exponent: γ.
    """
    return counts.double().clamp(min=1).pow(exponent).float()


def scaled_blocks(blocks: Iterable[Tensor], factors: Tensor) -> Iterator[Tensor]:
    """Yield blocks [b, D] of N rows in all, each row times its factor of `factors`, [N]."""
    start = 0
    for block in blocks:
        yield block * factors[start : start + len(block), None]
        start += len(block)


class PopularityFactor(nn.Module):
    """The factor max(count, 1)^γ of each candidate that an encoder was trained on.

    The counts are a buffer, so that a published encoder needs no training data to give the vectors
    that were published. γ is an option of the encoder, and in its manifest.

    Args:
        exponent: γ.
        size: N, ids of the vocabulary that candidates' ids are in.
    Source: docs/method.md, "Popularity in published vectors".
    """

    # Training pairs by row of the id vocabulary, float32 [N].
    counts: Tensor

    def __init__(self, exponent: float, size: int) -> None:
        super().__init__()
        self.exponent = exponent
        self.register_buffer("counts", torch.zeros(max(size, 1)))

    def count(self, ids: Tensor, counts: Tensor) -> None:
        """Keep the training pairs, int64 [n], of candidates whose rows of the vocabulary are `ids`,
        int64 [n]."""
        self.counts.zero_()
        self.counts[ids.to(self.counts.device)] = counts.to(self.counts)

    def factors(self, ids: Tensor) -> Tensor:
        """Return the factors, float32 [B], of candidates by their rows of the vocabulary, int64
        [B]; 1 for the row -1, of a candidate that training never saw."""
        ids = ids.to(self.counts.device)
        return popularity_factors(self.counts[ids.clamp(min=0)] * (ids >= 0), self.exponent)
