"""`SortedPairs`: observed pairs in the order of one side's rows, read in blocks of whole rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor


class RowBlock(NamedTuple):
    """Consecutive rows, and the positions of their pairs."""

    rows: slice
    pairs: slice


@dataclass(frozen=True)
class SortedPairs:
    """The n pairs of a corpus, sorted by the rows of one side and then by the partners' rows.

    Args:
        counts: int64 [N], the pairs of each row.
        columns: "partner", int [n], rows of the other side; "value" and "weight" [n] if wanted.
        check: raises a DataError for partners that are not rows of the other side.
        release: drops the pages of mapped columns from memory.
    """

    # Pairs in a block, and the number from which a row is a block of its own.
    block: ClassVar[int] = 1 << 21
    long: ClassVar[int] = 1 << 18

    counts: Tensor
    columns: Mapping[str, Tensor]
    check: Callable[[Tensor], None] = lambda partners: None
    release: Callable[[], None] = lambda: None

    @classmethod
    def of(
        cls, rows: Tensor, partners: Tensor, sizes: tuple[int, int], columns: Mapping[str, Tensor]
    ) -> SortedPairs:
        """Sort n pairs in memory: int64 rows [n] of both sides, which have `sizes` rows, and the
        columns "value" and "weight" if wanted."""
        order = torch.argsort(rows * sizes[1] + partners, stable=True)
        sorted_columns = {name: column[order] for name, column in columns.items()}
        counts = torch.bincount(rows, minlength=sizes[0])
        return cls(counts, {"partner": partners.int()[order], **sorted_columns})

    def __len__(self) -> int:
        return len(self.columns["partner"])

    @cached_property
    def blocks(self) -> list[RowBlock]:
        """All rows in order; a block has about `block` pairs, or a single row with more than `long`
        pairs."""
        counts = self.counts.numpy()
        ends = np.cumsum(counts)
        is_cut = np.zeros(len(counts) + 1, dtype=bool)
        is_cut[[0, -1]] = True
        is_cut[1:-1] = np.diff((ends - counts) // self.block) > 0
        long_rows = np.flatnonzero(counts > self.long)
        is_cut[long_rows] = is_cut[long_rows + 1] = True
        cuts = np.flatnonzero(is_cut)
        starts = [0, *ends[cuts[1:] - 1].tolist()]
        spans = zip(pairwise(cuts.tolist()), pairwise(starts), strict=True)
        return [RowBlock(slice(*rows), slice(*pairs)) for rows, pairs in spans]

    def read(self, name: str, pairs: slice, device: torch.device) -> Tensor:
        """Return a column of some pairs. Raises: DataError: partners are out of range."""
        values = self.columns[name][pairs]
        if name == "partner":
            self.check(values)
        return values.to(device, copy=True)
