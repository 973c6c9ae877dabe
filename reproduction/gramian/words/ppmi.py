"""A peer of another kind: positive pointwise mutual information and its singular vectors."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from reproduction.gramian.words.counts import Counts

# Singular vectors more than are wanted, and passes of subspace iteration, of the randomized SVD.
MORE, PASSES = 20, 4


def ppmi(counts: Counts, *, smoothing: float, shift: float) -> Tensor:
    """Return max(0, log(c_ab n / (c_a c_b)) − log shift), sparse [V, V].

    Args:
        smoothing: context words are counted c_b^smoothing; 1 leaves them as they are.
        shift: k of the shifted PPMI; 1 shifts nothing.
    Source: Levy, Goldberg and Dagan, "Improving distributional similarity with lessons learned from
        word embeddings", TACL 2015, §3.
    """
    size = len(counts.words)
    total = counts.count.sum()
    of_query = np.bincount(counts.query, counts.count, size) / total
    context = np.bincount(counts.candidate, counts.count, size) ** smoothing
    context /= context.sum()
    expected = of_query[counts.query] * context[counts.candidate]
    value = np.log(counts.count / total / expected) - math.log(shift)
    kept = value > 0
    place = np.stack([counts.query[kept], counts.candidate[kept]])
    return torch.sparse_coo_tensor(
        torch.from_numpy(place),
        torch.from_numpy(value[kept]).float(),
        (size, size),
        check_invariants=True,
    ).coalesce()


def svd_vectors(matrix: Tensor, *, dim: int, power: float, seed: int) -> Tensor:
    """Return U Σ^power of a truncated singular value decomposition, [V, dim].

    Args:
        matrix: sparse [V, V].
        dim: at most V.
        power: 1 is U Σ, 0 is U.
        seed: of the randomized decomposition.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        wide = min(dim + MORE, len(matrix))
        left, singular, _ = torch.svd_lowrank(matrix, q=wide, niter=PASSES)
    return left[:, :dim] * singular[:dim] ** power
