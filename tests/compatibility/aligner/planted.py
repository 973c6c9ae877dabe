"""Pairs of vectors of which the map is known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def planted(
    rows: int, old_dim: int, new_dim: int, seed: int = 0, noise: float = 0.0
) -> tuple[Floats, Floats, Floats]:
    """New [N, D_new] and old [N, D_old] vectors, and W [D_old, D_new]: old = new Wᵀ + noise."""
    draw = np.random.default_rng(seed)
    new = draw.normal(size=(rows, new_dim)) + 0.3
    weight = draw.normal(size=(old_dim, new_dim))
    return new, new @ weight.T + noise * draw.normal(size=(rows, old_dim)), weight


def turn(dim: int, seed: int) -> Floats:
    """An orthogonal matrix [D, D]."""
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]
