"""Statistics of a version's vectors: their second moments, and the forward map to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from evergram.compatibility.closed_form_fit import fit_closed_form, pairs_needed
from evergram.compatibility.degenerate import LONGEST, LengthCount, vectors_problem
from evergram.compatibility.second_moments import SecondMoments
from evergram.errors import DataError
from evergram.ids import refuse_other_form
from evergram.vector_files.open_embeddings import BLOCK, Block, first_not_finite
from evergram.vector_files.writers import vectors_from_arrow

# The number of vectors, their mean [D] and E[z zᵀ] [D, D], float64.
Moments = tuple[int, Tensor, Tensor]

# Sampled rows of a side for each dim of the old and the new space: at most this many, and at least
# half of them, so that the fitted map has an excess error of a few percent. More would
# cost more than writing the vectors does.
ROWS_PER_DIM = 16
LEAST_ROWS, MOST_ROWS = 16_384, 100_000
# The forward map is fitted to at least this many pairs, if there are as many.
LEAST_PAIRS = 4096
# Rows that are converted to float64 at once.
CHUNK = 4096
# One pair in this many is held out to choose the ridge.
FOR_RIDGE = 10


@dataclass(frozen=True)
class ForwardMap:
    """F_k, which leads from z_{k-1} to z_k, affine.

    Args:
        weight: float64 [D_k, D_{k-1}].
        offset: float64 [D_k].
    """

    weight: Tensor
    offset: Tensor


class RowSample:
    """Every n-th row of a side, taken as its blocks pass; n doubles when there are too many.

    Args:
        side: its name, for errors.
        dims: D of the new space, and of the old one if there is one.
    Attributes:
        ids, vectors: [S] and float32 [S, D], of the rows that were taken.
    """

    def __init__(self, side: str, *dims: int) -> None:
        self.side = side
        self.limit: int = min(MOST_ROWS, max(LEAST_ROWS, ROWS_PER_DIM * sum(dims)))
        self._step, self._rows = 1, 0
        self._parts: list[Block] = []
        self._lengths = LengthCount()
        self._moments: Moments | None = None

    def through(self, blocks: Iterable[Block], unknown: int = 0) -> Iterator[Block]:
        """Yield the same blocks, and sample rows of them.

        Args:
            unknown: how many of the rows are zeros that may be published, see `Artefact`.
        Raises: DataError: a vector is not finite or too long; or, at the end, the vectors cannot be
            published, see `vectors_problem`.
        """
        for ids, vectors in blocks:
            # Vectors are written as float32.
            narrow = vectors.float()
            if (row := first_not_finite(narrow)) is not None:
                raise self._refusal(ids[row], "has a NaN or an infinity")
            if (row := self._lengths.add(narrow)) is not None:
                length = float(narrow[row].double().norm())
                raise self._refusal(ids[row], f"has the length {length:.3g}, past {LONGEST:g}")
            for start in range(0, len(ids), BLOCK):
                self._add(ids.slice(start, BLOCK), vectors[start : start + BLOCK])
            yield ids, vectors
        _, mean, second = self.moments()
        spread = second - torch.outer(mean, mean)
        rows, zeros = self._lengths.rows - unknown, self._lengths.zeros - unknown
        problem = vectors_problem(rows, zeros, second, spread)
        if problem is not None:
            raise DataError(
                f"The {self.side} embeddings cannot be published: {problem}; look at how they were "
                "made. Nothing was published."
            )

    def _refusal(self, id_: pa.Scalar, what: str) -> DataError:
        return DataError(
            f"The {self.side} embedding of id {id_.as_py()!r} {what}; such a version is not "
            "published."
        )

    @property
    def ids(self) -> pa.Array:
        return pa.concat_arrays([ids for ids, _ in self._parts])

    @property
    def vectors(self) -> Tensor:
        return torch.cat([vectors for _, vectors in self._parts])

    def moments(self) -> Moments:
        """Return the number, mean and second moments of the sampled rows."""
        if self._moments is not None:
            return self._moments
        total, outer, count = torch.zeros(()).double(), torch.zeros(()).double(), 0
        for part in torch.split(self.vectors, CHUNK):
            wide = part.double()
            total, outer, count = total + wide.sum(0), outer + wide.T @ wide, count + len(wide)
        self._moments = count, total / count, outer / count
        return self._moments

    def _add(self, ids: pa.Array, vectors: Tensor) -> None:
        rows = torch.arange(len(ids))[-self._rows % self._step :: self._step]
        self._rows += len(ids)
        self._moments = None
        self._parts.append(_taken((ids, vectors), rows))
        while sum(len(ids) for ids, _ in self._parts) > self.limit:
            whole = self.ids, self.vectors
            self._parts = [_taken(whole, torch.arange(0, len(whole[0]), 2))]
            self._step *= 2


def _taken(block: Block, rows: Tensor) -> Block:
    return block[0].take(pa.array(rows.numpy())), block[1][rows].detach().float().cpu()


def forward_map(samples: Mapping[str, RowSample], old: Mapping[str, Path]) -> ForwardMap | None:
    """Return the map to a version from the version before, fitted to sampled objects of both.

    It holds the ids of one file and the sampled vectors in memory.

    Args:
        samples: by side, of the new version.
        old: side to file of the version before; all sides of both versions are fitted together.
    Returns: None if too few objects are in both.
    """
    pairs: list[SecondMoments] = []
    for side, sample in samples.items():
        if side not in old:
            continue
        rows, before = _looked_up(sample.ids, old[side])
        new = sample.vectors[rows]
        if not pairs:
            pairs = [SecondMoments(new.shape[1], before.shape[1]) for _ in range(2)]
        for z, past in zip(torch.split(new, CHUNK), torch.split(before, CHUNK), strict=True):
            apart = torch.arange(len(z)) % FOR_RIDGE == 0
            for sums, chosen in zip(pairs, (~apart, apart), strict=True):
                sums.add(z[chosen], past[chosen])
    if not pairs:
        return None
    # The target of this map is the new version: "old" and "new" have changed places.
    seen, held_out = pairs
    if seen.count < pairs_needed("affine", seen.old_dim, seen.new_dim):
        return None
    fitted = fit_closed_form("affine", seen, held_out)
    assert fitted.offset is not None
    return ForwardMap(fitted.weight, fitted.offset)


def _looked_up(ids: pa.Array, path: Path) -> tuple[Tensor, Tensor]:
    """Return the places in `ids` [P] of some that a file has, and their vectors there [P, D].

    Row groups are read evenly over the file, and no more of them than are needed.
    """
    with pq.ParquetFile(path) as file:
        theirs = file.read(columns=["id"])["id"].combine_chunks()
        if theirs.type != ids.type:
            theirs, ids = theirs.cast(pa.string()), ids.cast(pa.string())
        refuse_other_form(ids, theirs, "the new version", "the version before it")
        place = pc.fill_null(pc.index_in(ids, value_set=theirs), -1).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(place >= 0)
        rows = rows[np.argsort(place[rows], kind="stable")]  # as they come in the file
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        ends = np.searchsorted(place[rows], np.cumsum(sizes))
        starts = np.cumsum([0, *sizes])
        dim = file.schema_arrow.field("vector").type.list_size
        wanted = max(LEAST_PAIRS, ROWS_PER_DIM * (dim + 1))
        # Every n-th group, then those after them, and so on.
        stride = max(1, len(rows) // wanted)
        vectors, places, count = [torch.empty(0, dim)], [rows[:0]], 0
        for i in (i for first in range(stride) for i in range(first, len(sizes), stride)):
            mine = rows[ends[i - 1] if i else 0 : ends[i]]
            if count >= wanted or not len(mine):
                continue
            table = file.read_row_group(i, columns=["vector"])
            kept = table.take(pa.array(place[mine] - starts[i]))
            vectors.append(vectors_from_arrow(kept["vector"]))
            places.append(mine)
            count += len(mine)
    return torch.from_numpy(np.concatenate(places)), torch.cat(vectors)
