"""Pairs of vectors of which the map is known, and what an aligner should make of them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from evergram.compatibility import Aligner
from evergram.compatibility.row_groups import pair_groups, vector_hashes

Floats = npt.NDArray[np.float64]


def planted_map(
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


def weight_of(aligner: Aligner) -> Floats:
    """W and b as one matrix [D_old, D_new + 1], from the images of unit vectors."""
    dim = aligner.report().new_dim
    zero: Floats = aligner.transform(np.zeros((1, dim)))
    columns = aligner.transform(np.eye(dim)) - zero
    return np.concatenate([columns, zero]).T


def groups_of(new: Floats, share: float) -> dict[str, npt.NDArray[np.bool_]]:
    """The masks of the rows that an aligner fits to, chooses the ridge on, and measures on."""
    groups = pair_groups(vector_hashes(torch.from_numpy(new)), share)
    return {name: getattr(groups, name).numpy() for name in ("seen", "chosen", "held")}


def ridge_by_rows(new: Floats, old: Floats, rho: float) -> Floats:
    """argmin mean ‖W z − y‖² + ρ ‖W‖² as a plain least-squares problem with D more rows."""
    root = math.sqrt(rho)
    stacked = np.concatenate([new / math.sqrt(len(new)), root * np.eye(new.shape[1])])
    target = np.concatenate([old / math.sqrt(len(old)), np.zeros((new.shape[1], old.shape[1]))])
    weight: Floats = np.linalg.lstsq(stacked, target, rcond=None)[0].T
    return weight
