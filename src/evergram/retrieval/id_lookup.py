"""Find the rows of many ids among stored ones, batch after batch, without hashing the stored ids
again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from evergram.data.corpus import plain
from evergram.errors import DataError
from evergram.ids import is_text
from evergram.stores.rows import Places, find, keys_of


class IdLookup:
    """Stored ids in the order of their keys, which takes 16 bytes an id.

    Args:
        ids: [N], int64 or string, distinct.
    """

    def __init__(self, ids: pa.Array) -> None:
        self._ids = plain(ids)
        keys = keys_of(self._ids)
        self._rows: Places = np.argsort(keys, kind="stable")
        self._keys = keys[self._rows]

    def rows(self, ids: pa.Array | pa.ChunkedArray) -> Places:
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
        which, places = find(self._keys, wanted, keys_of(wanted), self._ids_at)
        rows[np.flatnonzero(there)[which]] = self._rows[places]
        return rows

    def _ids_at(self, places: Places) -> pa.Array:
        return self._ids.take(pa.array(self._rows[places]))

    def _other_type(self, kind: pa.DataType) -> DataError:
        return DataError(
            f"The ids of a batch are {kind}, and the stored ones {self._ids.type}; cast them in "
            "the engine."
        )
