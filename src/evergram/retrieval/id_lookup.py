"""Find the rows of many ids among stored ones, batch after batch, without hashing the stored ids
again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.features import plain
from evergram.errors import DataError
from evergram.ids import is_text
from evergram.stores.rows import keys_of


class IdLookup:
    """Stored ids in the order of their keys, which takes 16 bytes an id.

    Args:
        ids: [N], int64 or string, distinct.
    """

    def __init__(self, ids: pa.Array) -> None:
        self._ids = plain(ids)
        keys = keys_of(self._ids)
        self._rows: npt.NDArray[np.int64] = np.argsort(keys, kind="stable")
        self._keys = keys[self._rows]
        # Two texts of one hash: then the hashes find nothing reliably, and a dictionary does.
        self._by_text: dict[str, int] | None = None
        if bool((self._keys[1:] == self._keys[:-1]).any()):
            self._by_text = {text: row for row, text in enumerate(self._ids.to_pylist())}

    def rows(self, ids: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
        """Return the row of each id, [n]; -1 for an id that is not stored, and for a null.

        Raises: DataError: the ids are texts and the stored ones integers, or the other way round;
            or they are of no type that ids are of.
        """
        if isinstance(ids, pa.ChunkedArray):
            ids = ids.combine_chunks()
        kind = ids.type
        own = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_integer(own) or is_text(own) or pa.types.is_null(own)):
            raise self._other_type(kind)
        rows = np.full(len(ids), -1, dtype=np.int64)
        there = ids.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_string_view(ids.type):
            ids = ids.cast(pa.string())  # views cannot be filtered
        wanted = plain(ids.filter(pa.array(there)))
        if not len(wanted) or not len(self._ids):
            return rows
        if wanted.type != self._ids.type:
            raise self._other_type(kind)
        rows[there] = self._rows_of(wanted)
        return rows

    def _other_type(self, kind: pa.DataType) -> DataError:
        return DataError(
            f"The ids of a batch are {kind}, and the stored ones {self._ids.type}; cast them in "
            "the engine."
        )

    def _rows_of(self, wanted: pa.Array) -> npt.NDArray[np.int64]:
        if self._by_text is not None:
            texts = (self._by_text.get(text, -1) for text in wanted.to_pylist())
            return np.fromiter(texts, dtype=np.int64, count=len(wanted))
        keys = keys_of(wanted)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        rows = self._rows[places]
        same = self._keys[places] == keys
        if pa.types.is_string(wanted.type):
            # An id that is not stored may have the hash of one that is.
            stored = self._ids.take(pa.array(rows))
            same &= pc.equal(stored, wanted).to_numpy(zero_copy_only=False)
        return np.where(same, rows, -1)
