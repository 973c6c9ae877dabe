"""The kinds of starting vectors, and a factorization whose tables start from them.

A start is made of the observed pairs alone, before the first step; training goes on from it as it
would from random rows. Entities without a pair keep their random rows: the matrix says nothing
about them, and rows of zeros would get no gradient from each other.

With `training.epochs = 0` the start is the model. A decomposition in closed form is not an encoder
of its own kind for this reason: it is a factorization, whose tables are published, exported,
upgraded and trained further by what is there for one, and old readers know its kind.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.factorization import Factorization
from evergram.encoders.features import SIDES
from evergram.errors import RecipeError
from evergram.training.recipe import ModelRecipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.starts.als_start import als_start
from evergram.training.starts.normalised_matrix import NormalisedMatrix

POWER_STEPS = 4
# Of a float32 row, what is left of it may be this share of it and rounding alone.
ROUNDING = 1e-5


def smooth_start(matrix: NormalisedMatrix, dim: int, seed: int) -> dict[str, Tensor]:
    """Return Gaussian vectors that went over the graph, without popularity, [N, dim] of each side.

    With N the matrix and G ~ N(0, 1) of the candidates, candidates have NᵀN G and queries N NᵀN G;
    of both the part along the first singular vectors is taken out. Inner products of rows then
    estimate those of smoothed rows of the graph, without the direction that all of them share.

    Returns: rows of norm 1; zeros for an entity without pairs, and where nothing but rounding is
        left.
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
    """Return U √Σ and V √Σ of the truncated singular value decomposition, [N, dim] of each side.

    It is randomised, from twice as many Gaussian vectors as it keeps.

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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        left, values, right = torch.svd_lowrank(
            matrix.matrix, q=min(2 * dim, least), niter=POWER_STEPS
        )
    root = values[:dim].sqrt()
    return {"query": left[:, :dim] * root, "candidate": right[:, :dim] * root}


# Of the normalised matrix, by `model.start`; "als" is made by the objective, too, and "random" is
# what the tables were drawn with.
STARTS: dict[str, Callable[[NormalisedMatrix, int, int], dict[str, Tensor]]] = {
    "smooth": smooth_start,
    "svd": svd_start,
}


def start_tables(encoder: Encoder, settings: FitSettings, corpus: Corpus) -> None:
    """Write the starting vectors of `model.start` into an encoder's tables, in place.

    Args:
        encoder: a factorization as it was drawn, with a row for each id, in memory.
        settings: `version_seed` is of the vectors; with the same number of threads they are the
            same bit by bit.
        corpus: the training pairs.
    Raises: RecipeError: the model's tables cannot start from vectors, or dim is too large; or a
        library is absent.
    """
    model, seed = settings.model, settings.version_seed
    if model.start == "random":
        return
    refuse_unstartable(model, encoder.tables_folder)
    assert isinstance(encoder, Factorization)
    if model.start == "als":
        vectors = als_start(corpus, settings.strengths, encoder.dim, seed)
    else:
        vectors = STARTS[model.start](NormalisedMatrix.of(corpus), encoder.dim, seed)
    scale = model.scale * encoder.dim**0.5
    scene = encoder.read(corpus)
    for side, table in (("query", encoder.query), ("candidate", encoder.candidate)):
        rows = vectors[side]
        known = corpus.counts(side) > 0
        if model.start == "smooth":
            known &= rows.any(dim=1)  # the others keep their random rows
            rows = rows if model.normalize else rows * scale
        with torch.no_grad():
            table.weight[scene.inputs[side].table_rows[known]] = rows[known].to(table.weight)


def refuse_unstartable(model: ModelRecipe, folder: Path | None) -> None:
    """Refuse a start from vectors for tables that cannot take them.

    Args:
        folder: where tables are mapped from files; None if they are in memory.
    Raises: RecipeError.
    """
    if model.kind != "factorization":
        reason = f"model.kind is {model.kind!r}"
    elif getattr(model, "hash_rows", None) is not None:
        reason = "model.hash_rows is set, whose rows several ids share"
    elif folder is not None:
        reason = "the tables are mapped from files, as training.tables or too little memory has it"
    else:
        return
    raise RecipeError(
        f"model.start = {model.start!r} writes vectors into the tables of model.kind = "
        f"'factorization' in memory, with a row for each id, and {reason}; set model.start = "
        "'random', or change the other."
    )
