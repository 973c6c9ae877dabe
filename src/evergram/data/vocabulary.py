"""`Vocabulary`: distinct ids or keys in a fixed order, and the row of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.data.feature_types import is_measure, measures_of, positions


@dataclass(frozen=True)
class Vocabulary:
    """Distinct keys in a fixed order; the position of a key is its row.

    Keys that are numbers or times ascend, and the row of a value is that of the largest key that is
    no larger; of a smaller value than all, the first.

    Args:
        keys: Arrow array [N] without repeats or nulls, int64 or string; or float64 or timestamps,
            of which the last may be null, the key of missing values.
    """

    keys: pa.Array

    @classmethod
    def by_first_appearance(cls, values: pa.Array) -> Vocabulary:
        """Return the vocabulary of the distinct values, in the order in which they first appear;
        of numbers and times, ascending."""
        if is_measure(values.type):
            return cls(pc.unique(values).sort())
        return cls(pc.unique(plain(values)))

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} keys of {self.keys.type})"

    def rows(self, values: pa.Array) -> Tensor:
        """Return the row of each value, int64 [n]; -1 for a value that is no key."""
        if is_measure(self.keys.type):
            return self._rows_of_measures(values)
        values = plain(values)
        if values.type != self.keys.type:
            if pa.types.is_string(self.keys.type):
                values = values.cast(pa.string())
            else:  # of strings, only those that are integers can be keys
                values = pc.if_else(_is_int64(values), values, None).cast(self.keys.type)
        rows = pc.index_in(values, value_set=self.keys).cast(pa.int64())
        return to_tensor(pc.fill_null(rows, -1))

    def _rows_of_measures(self, values: pa.Array) -> Tensor:
        starts = self.keys.drop_null()
        of_missing = len(starts) if self.keys.null_count else -1
        wanted = positions(measures_of(values, self.keys.type, ""))
        rows = np.searchsorted(positions(starts), wanted, side="right") - 1
        return torch.from_numpy(np.where(np.isnan(wanted), of_missing, rows.clip(min=0)))

    @property
    def row_of_missing(self) -> int | None:
        """The row of missing numbers or times; None if it has none."""
        return len(self.keys) - 1 if self.keys.null_count else None


def plain(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return ids or keys of any width or encoding as one contiguous array of int64 or string."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_integer(values.type):
        largest = pc.max(values).as_py() if pa.types.is_uint64(values.type) else None
        if largest is None or largest < 2**63:
            return values.cast(pa.int64())
    return values.cast(pa.string())


def to_tensor(values: pa.Array | pa.ChunkedArray) -> Tensor:
    """Return a tensor of the same numbers; it is a copy only if Arrow's memory is read-only."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    array = values.to_numpy(zero_copy_only=False)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _is_int64(texts: pa.Array) -> pa.Array:
    """Return bool [n], True for texts that are whole numbers of 64 bits."""
    long = pc.match_substring_regex(texts, r"^-?[1-9]\d{18}$")
    small = pc.less_equal(pc.utf8_ltrim(texts, characters="-"), str(2**63 - 1))
    small = pc.or_(small, pc.equal(texts, str(-(2**63))))
    # 05 is another id than 5.
    short = pc.match_substring_regex(texts, r"^(0|-?[1-9]\d{0,17})$")
    return pc.or_(short, pc.and_(long, small))
