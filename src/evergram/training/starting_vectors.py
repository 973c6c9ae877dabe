"""Starting vectors of a factorization's tables, computed from the observed pairs.

Entities without a pair keep their random rows: the matrix says nothing about them, and rows of
zeros would get no gradient from each other. With `training.epochs = 0` the start is the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.factorization import Factorization
from evergram.encoders.features import SIDES
from evergram.encoders.kinds import FactorizationSettings
from evergram.errors import RecipeError
from evergram.training.factors import svd_factors
from evergram.training.recipe.fit_settings import FitSettings

# What is left of a float32 row is rounding if it is less than this share of the row.
ROUNDING = 1e-5


def smooth_start(matrix: NormalisedMatrix, dim: int, seed: int) -> dict[str, Tensor]:
    """Return Gaussian vectors smoothed over the graph, without popularity, [N, dim] of each side.

    With N the matrix and G ~ N(0, 1) of the candidates, candidates have NᵀN G and queries N NᵀN G,
    without the part along the first singular vectors, which all rows share.

    Returns: rows of norm 1; zeros for an entity without pairs, and where only rounding is left.
    """
    product, transposed = matrix.matrix, matrix.transposed
    drawn = torch.randn(
        transposed.shape[0],
        dim,
        generator=torch.Generator().manual_seed(seed),
        dtype=product.dtype,
    )
    candidates = transposed @ (product @ drawn)
    raw = {"query": product @ candidates, "candidate": candidates}
    vectors = {}
    for side, direction in zip(SIDES, matrix.leading_pair(), strict=True):
        rest = raw[side] - torch.outer(direction, direction @ raw[side])
        rounding = rest.norm(dim=1) <= ROUNDING * raw[side].norm(dim=1)
        vectors[side] = functional.normalize(rest, dim=1).masked_fill(rounding[:, None], 0.0)
    return vectors


def svd_start(matrix: NormalisedMatrix, dim: int, seed: int) -> dict[str, Tensor]:
    """Return the `svd_factors` of the matrix, [N, dim] of each side.

    Raises: RecipeError: dim is above the matrix's smaller side.
    """
    least = min(matrix.matrix.shape)
    if dim > least:
        queries, candidates = matrix.matrix.shape
        raise RecipeError(
            f"model.start = 'svd' needs model.dim ≤ the number of queries and of candidates, and "
            f"it is {dim} of {queries:,} queries and {candidates:,} candidates; lower model.dim, "
            "or set model.start = 'random'."
        )
    return svd_factors(matrix.matrix, dim, seed)


# By `model.start`; "random" is what the tables were drawn with.
STARTS: dict[str, Callable[[NormalisedMatrix, int, int], dict[str, Tensor]]] = {
    "smooth": smooth_start,
    "svd": svd_start,
}


def start_tables(encoder: Encoder, settings: FitSettings, corpus: Corpus) -> None:
    """Write the starting vectors of `model.start` into an encoder's tables, in place.

    The same `settings.version_seed` and number of threads give the same bits.

    Raises: RecipeError: the tables cannot start from vectors, or dim is too large.
    """
    model, seed = settings.model, settings.version_seed
    assert isinstance(model, FactorizationSettings)
    assert isinstance(encoder, Factorization)
    if encoder.tables_folder is not None:
        raise RecipeError(
            f"model.start = {model.start!r} writes vectors into tables in memory, and the tables "
            "are mapped from files, as training.tables or too little memory has it; set "
            "model.start = 'random', or change the other."
        )
    vectors = STARTS[model.start](NormalisedMatrix.of(corpus), encoder.dim, seed)
    scale = model.start_scale * encoder.dim**0.5
    scene = encoder.read(corpus)
    for side, table in (("query", encoder.query), ("candidate", encoder.candidate)):
        rows = vectors[side]
        known = corpus.counts(side) > 0
        if model.start == "smooth":
            known &= rows.any(dim=1)  # the others keep their random rows
            rows = rows if model.normalize else rows * scale
        with torch.no_grad():
            table.weight[scene.inputs[side].table_rows[known]] = rows[known].to(table.weight)


# Added to the pairs of an entity, so that one with few of them does not weigh as much as its few.
DAMPING = 5.0
LEADING_STEPS = 20


@dataclass(frozen=True)
class NormalisedMatrix:
    """(D_u + 5)^-½ R (D_i + 5)^-½: R is 1 where a pair was observed, D its sums over rows, columns.

    The matrices are sparse COO; `degrees` has the distinct pairs of each entity of a side, [N].
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
        """Return the first singular vectors, [queries] and [candidates] of norm 1: the direction of
        popularity, about √counts, from which the power iteration starts."""
        right = self.degrees["candidate"].sqrt()[:, None]
        for _ in range(LEADING_STEPS):
            right = torch.nn.functional.normalize(self.transposed @ (self.matrix @ right), dim=0)
        left = torch.nn.functional.normalize(self.matrix @ right, dim=0)
        return left[:, 0], right[:, 0]
