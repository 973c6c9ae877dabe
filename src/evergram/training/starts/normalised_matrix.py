"""The matrix of observed pairs, divided by how often its queries and candidates occur."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.encoders.features import SIDES

# Added to the pairs of an entity, so that one with few of them does not weigh as much as its few.
DAMPING = 5.0
POWER_STEPS = 20


@dataclass(frozen=True)
class NormalisedMatrix:
    """(D_u + 5)^-½ R (D_i + 5)^-½: R is 1 where a pair was observed, D its sums over rows, columns.

    Args:
        matrix, transposed: sparse COO [queries, candidates], and [candidates, queries].
        degrees: the distinct pairs of each entity of a side, [N].
    """

    matrix: Tensor
    transposed: Tensor
    degrees: dict[str, Tensor]

    @classmethod
    def of(cls, corpus: Corpus, dtype: torch.dtype = torch.float32) -> NormalisedMatrix:
        """Return the matrix of a corpus; a pair counts once, however often it was observed."""
        shape = len(corpus.queries), len(corpus.candidates)
        keys = torch.unique(corpus.column("query") * shape[1] + corpus.column("candidate"))
        pairs = torch.stack([keys // shape[1], keys % shape[1]])
        degrees = {
            side: torch.bincount(rows, minlength=size).to(dtype)
            for side, rows, size in zip(SIDES, pairs, shape, strict=True)
        }
        roots = [(degrees[side] + DAMPING).rsqrt() for side in SIDES]
        values = roots[0][pairs[0]] * roots[1][pairs[1]]
        matrix = torch.sparse_coo_tensor(pairs, values, shape, check_invariants=False).coalesce()
        return cls(matrix, matrix.t().coalesce(), degrees)

    def leading_pair(self) -> tuple[Tensor, Tensor]:
        """Return the first singular vectors, [queries] and [candidates] of norm 1.

        They are the direction of popularity: without the damping they are ∝ √counts, from which the
        power iteration starts.
        """
        right = self.degrees["candidate"].sqrt()[:, None]
        for _ in range(POWER_STEPS):
            right = torch.nn.functional.normalize(self.transposed @ (self.matrix @ right), dim=0)
        left = torch.nn.functional.normalize(self.matrix @ right, dim=0)
        return left[:, 0], right[:, 0]
