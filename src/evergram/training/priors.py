"""Priors π_ab = ⟨q_a, r_b⟩ as factors of each side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.corpus import Corpus, Vocabulary, to_tensor
from evergram.data.tables import read_keyed
from evergram.encoders.features import SIDES
from evergram.errors import DataError, RecipeError
from evergram.training.recipe import PriorRecipe


def build_prior(
    recipe: PriorRecipe, corpus: Corpus, past: Mapping[str, Tensor] | None, seed: int
) -> dict[str, Tensor]:
    """Q and R, float32 [N, K] of each side; K = 0 is the zero prior.

    Args:
        past: for `version`, the embeddings of the version before, [N, K] of each side: the scores
            of that version are distilled into the new one.
    Raises: RecipeError: `version` without a version before. DataError: a file cannot be used.
    Source: [G2] App. B.
    """
    sizes = {"query": len(corpus.queries), "candidate": len(corpus.candidates)}
    if recipe.kind == "constant":
        value = torch.full((sizes["query"], 1), recipe.value)
        return {"query": value, "candidate": torch.ones(sizes["candidate"], 1)}
    if recipe.kind == "files":
        files = {"query": str(recipe.query), "candidate": str(recipe.candidate)}
        sides = dict(zip(SIDES, (corpus.queries, corpus.candidates), strict=True))
        found = {s: read_vectors(Path(files[s]), sides[s].vocabulary) for s in SIDES}
        widths = [found[s].shape[1] for s in SIDES]
        if widths[0] != widths[1]:
            raise DataError(
                f"prior.query has vectors of {widths[0]} dims and prior.candidate of {widths[1]}; "
                "their inner products are the prior, so they must agree."
            )
        return found
    if recipe.kind == "svd":
        return _svd(corpus, recipe.rank, seed)
    if recipe.kind == "version":
        if past is None:
            raise RecipeError(
                "prior.kind = 'version' distils the scores of the version before, and version 0 "
                "has none; use it with upgrade."
            )
        return {side: past[side].float() for side in SIDES}
    return {side: torch.zeros(size, 0) for side, size in sizes.items()}


def prior_constant(
    prior: Mapping[str, Tensor], measures: Mapping[str, Tensor], strengths: list[float]
) -> float:
    """Σ_r λ_r Σ_ab p_a q_b ⟨q_a, r_b⟩², in float64."""
    total = 0.0
    for r, strength in enumerate(strengths):
        query, candidate = (
            (prior[s].double() * measures[s][:, r, None]).T @ prior[s].double() for s in SIDES
        )
        total += strength * float((query * candidate).sum())
    return total


def read_vectors(path: Path, vocabulary: Vocabulary) -> Tensor:
    """Vectors of a file with columns `id` and `vector`, float32 [N, K]; zeros for what it lacks.

    Raises: DataError: the file is no such table, or knows none of the ids.
    """
    ids, chunks = read_keyed(path, "vector")
    column = chunks.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    kind = column.type
    listed = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind)
    if not listed or not (
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    ):
        raise DataError(f"{path} column 'vector' is {kind}; it must hold lists of numbers.")
    flat = to_tensor(column.flatten().cast(pa.float32()))
    if not len(column) or len(flat) % len(column) or not bool(torch.isfinite(flat).all()):
        raise DataError(f"{path} column 'vector' needs lists of finite numbers, all of one length.")
    vectors = flat.view(len(column), -1)
    rows = Vocabulary(ids).rows(vocabulary.keys)
    if not bool((rows >= 0).any()):
        raise DataError(f"{path} knows none of the corpus's ids; is it of the other side?")
    return vectors[rows.clamp(min=0)] * (rows >= 0)[:, None]


def _svd(corpus: Corpus, rank: int, seed: int) -> dict[str, Tensor]:
    """The truncated decomposition of the observed matrix (1 where a pair was observed)."""
    shape = (len(corpus.queries), len(corpus.candidates))
    if rank >= min(shape):
        raise RecipeError(
            f"prior.rank is {rank}, and the observed matrix is {shape[0]} × {shape[1]}; the rank "
            "must be smaller than both."
        )
    pairs = torch.unique(torch.stack([corpus.column(s) for s in SIDES]), dim=1)
    observed = torch.sparse_coo_tensor(pairs, torch.ones(pairs.shape[1]), shape).coalesce()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        left, values, right = torch.svd_lowrank(observed, q=min(2 * rank, min(shape)), niter=4)
    root = values[:rank].sqrt()
    return {"query": left[:, :rank] * root, "candidate": right[:, :rank] * root}
