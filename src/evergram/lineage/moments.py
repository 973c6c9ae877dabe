"""What publication learns of the vectors: their second moments, and the map forward to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.compatibility.closed_form import fit_closed_form, pairs_needed
from evergram.compatibility.second_moments import SecondMoments
from evergram.stores.embedding_files import EmbeddingFile, open_embeddings
from evergram.stores.reading_ahead import ahead

# How many vectors, their mean [D] and E[z zᵀ] [D, D], float64.
Moments = tuple[int, Tensor, Tensor]

# Rows of a side that are looked at: so many for each dim, which leaves the fitted map an excess
# error of a few percent, and their cost, rows · D², below that of writing the vectors.
ROWS_PER_DIM = 16
LEAST_ROWS, MOST_ROWS = 20_000, 100_000
# One pair in so many chooses the ridge.
FOR_RIDGE = 10


@dataclass(frozen=True)
class ForwardMap:
    """F_k: z_{k-1} to z_k, affine.

    Args:
        weight: float64 [D_k, D_{k-1}].
        offset: float64 [D_k].
    """

    weight: Tensor
    offset: Tensor


def learn(
    new: Mapping[str, Path], old: Mapping[str, Path]
) -> tuple[dict[str, Moments], ForwardMap | None]:
    """Second moments of each side of a version, and the way to it from the version before.

    Memory: the ids of both files, and at most `MOST_ROWS` old vectors.

    Args:
        new: side to file of the version's embeddings.
        old: the same of the version before; the map is fitted on the objects of both, of all sides
            that both have.
    Returns: the map is None where the common objects are too few to fit one.
    Raises: DataError: a vector is not finite, or a file cannot be read.
    """
    moments: dict[str, Moments] = {}
    pairs: list[SecondMoments] = []
    for side, path in new.items():
        file = open_embeddings(path)
        common = None
        if side in old:
            before = open_embeddings(old[side])
            common = _Common(before, file)
            if not pairs:
                pairs = [SecondMoments(file.dim, before.dim) for _ in range(2)]
        moments[side] = _pass(file, common, pairs)
    return moments, _fit(*pairs) if pairs else None


def _fit(seen: SecondMoments, held: SecondMoments) -> ForwardMap | None:
    """Here the new version is what is mapped to: "old" and "new" have changed places."""
    if seen.count < pairs_needed("affine", seen.old_dim, seen.new_dim) or not held.count:
        return None
    found = fit_closed_form("affine", seen, held)
    assert found.offset is not None
    return ForwardMap(found.weight, found.offset)


class _Common:
    """Some objects of two files: rows of the new one, and the old vectors of them."""

    def __init__(self, old: EmbeddingFile, new: EmbeddingFile) -> None:
        old_ids, new_ids = old.ids(), new.ids()
        if old_ids.type != new_ids.type:
            old_ids, new_ids = old_ids.cast(pa.string()), new_ids.cast(pa.string())
        place = pc.fill_null(pc.index_in(new_ids, value_set=old_ids), -1)
        place = place.to_numpy(zero_copy_only=False)
        self.rows = _some(np.flatnonzero(place >= 0), _size(old.dim, new.dim))
        wanted = place[self.rows]
        order = np.argsort(wanted, kind="stable")
        self.vectors = torch.empty(len(wanted), old.dim)
        start = done = 0
        # Without a common object, nothing is read.
        for _, block in ahead(old.blocks()) if len(wanted) else ():
            stop = done + int(np.searchsorted(wanted[order[done:]], start + len(block)))
            mine = order[done:stop]
            self.vectors[mine] = block[wanted[mine] - start].float()
            start, done = start + len(block), stop


def _pass(file: EmbeddingFile, common: _Common | None, pairs: list[SecondMoments]) -> Moments:
    """Moments of some rows of a file; those of pairs are added to `pairs`, seen and held out."""
    rows = _some(np.arange(file.rows), _size(file.dim, file.dim))
    mean = torch.zeros(file.dim, dtype=torch.float64)
    second = torch.zeros(file.dim, file.dim, dtype=torch.float64)
    start = 0
    for _, block in ahead(file.blocks()):
        stop = start + len(block)
        wide = block[_between(rows, start, stop) - start].double()
        mean += wide.sum(0)
        second += wide.T @ wide
        if common is not None:
            first = int(np.searchsorted(common.rows, start))
            mine = _between(common.rows, start, stop)
            past = common.vectors[first : first + len(mine)]
            apart = (torch.arange(first, first + len(mine)) % FOR_RIDGE) == 0
            here = block[mine - start]
            for found, chosen in zip(pairs, (~apart, apart), strict=True):
                found.add(here[chosen], past[chosen])
        start = stop
    return len(rows), mean / len(rows), second / len(rows)


def _size(old_dim: int, new_dim: int) -> int:
    return min(MOST_ROWS, max(LEAST_ROWS, ROWS_PER_DIM * (old_dim + new_dim)))


def _some(rows: np.ndarray, size: int) -> np.ndarray:
    """At most `size` of ascending rows, evenly."""
    if len(rows) <= size:
        return rows
    return rows[np.linspace(0, len(rows) - 1, size).round().astype(np.int64)]


def _between(rows: np.ndarray, start: int, stop: int) -> np.ndarray:
    first, last = np.searchsorted(rows, (start, stop))
    return rows[first:last]
