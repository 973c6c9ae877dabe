"""The writer of a segment: rows block after block, in flat memory."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.stores.snapshot.segment import Keys, Places, keys_of
from evergram.stores.snapshot.snapshot_record import FileRecord, HashedFile, SegmentRecord
from evergram.stores.store import Checks, Floats, Rows

# Bytes of vectors that lie together in a file, and are in memory while it is written.
BATCH_BYTES = 32 << 20
# A larger segment is not merged with others.
MAX_ROWS = 1 << 22


class SegmentWriter:
    """Writes one file of rows of one version; a later row of an id replaces the one before.

    Rows that fit into one batch are sorted by key. More rows stay in their order, with a second
    file, the lookup, that says where each id is.
    """

    def __init__(self, folder: Path, number: int, version: int | None, batch_rows: int) -> None:
        self._folder, self._number, self._version = folder, number, version
        self._batch_rows = batch_rows
        self._buffer: list[tuple[pa.Array, Floats, Checks]] = []
        self._buffered = 0
        self._keys: list[Keys] = []
        self._arrow: Any = None
        self._name = f"{number}.arrow"
        self._file = HashedFile(folder / self._name)
        self.rows: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the file if it was not finished."""
        if error is not None:
            self.abandon()

    def abandon(self) -> None:
        """Remove the file."""
        self._file.abandon()

    def add(self, rows: Rows, checks: Checks) -> None:
        """Add rows [n] with their checksums [n]."""
        self._buffer.append((rows.ids, rows.vectors, checks))
        self._buffered += len(rows)
        self.rows += len(rows)
        if self._buffered > self._batch_rows:
            ids, vectors, checks = self._joined()
            whole = (len(ids) - 1) // self._batch_rows * self._batch_rows
            for start in range(0, whole, self._batch_rows):
                part = slice(start, start + self._batch_rows)
                mine = ids.slice(start, self._batch_rows)
                self._keys.append(keys_of(mine))
                self._batch(mine, vectors[part], checks[part])
            self._buffer = [(ids.slice(whole), vectors[whole:].copy(), checks[whole:].copy())]
            self._buffered = len(ids) - whole

    def finish(self) -> SegmentRecord:
        """Sync the file, which must have a row, rename it into its place, and return its record."""
        ids, vectors, checks = self._joined()
        last = keys_of(ids)
        if not self._keys:
            rows = sorted_places(last, ids)
            self.rows = len(rows)
            self._batch(ids.take(pa.array(rows)), vectors[rows], checks[rows], last[rows])
        else:
            self._batch(ids, vectors, checks)
        self._arrow.close()
        data = FileRecord(self._name, self._file.finish())
        if not self._keys:
            return SegmentRecord(self._number, self._version, self.rows, data)
        lookup = self._write_lookup(np.concatenate([*self._keys, last]))
        return SegmentRecord(self._number, self._version, self.rows, data, lookup)

    def _joined(self) -> tuple[pa.Array, Floats, Checks]:
        if len(self._buffer) == 1:
            return self._buffer[0]
        ids, vectors, checks = zip(*self._buffer, strict=True)
        return pa.concat_arrays(ids), np.concatenate(vectors), np.concatenate(checks)

    def _batch(
        self, ids: pa.Array, vectors: Floats, checks: Checks, keys: Keys | None = None
    ) -> None:
        columns = {"id": ids}
        if self._version is not None:
            flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
            columns["vector"] = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
            columns["check"] = pa.array(np.ascontiguousarray(checks))
        if keys is not None and pa.types.is_string(ids.type):
            columns["key"] = pa.array(keys)
        batch = pa.record_batch(columns)
        if self._arrow is None:
            self._arrow = pa.ipc.new_file(pa.PythonFile(self._file, mode="w"), batch.schema)
        self._arrow.write_batch(batch)

    def _write_lookup(self, keys: Keys) -> FileRecord:
        path = self._folder / self._name

        def ids() -> pa.Array:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
            return pa.concat_arrays([batch["id"] for batch in batches])

        rows = sorted_places(keys, ids)
        name = f"{self._number}.lookup"
        batch = pa.record_batch(
            {"key": pa.array(keys[rows]), "row": pa.array(rows.astype(np.uint32))}
        )
        file = HashedFile(self._folder / name)
        try:
            with pa.ipc.new_file(pa.PythonFile(file, mode="w"), batch.schema) as arrow:
                arrow.write_batch(batch)
        except BaseException:
            file.abandon()
            raise
        return FileRecord(name, file.finish())


def sorted_places(keys: Keys, ids: Any) -> Places:
    """Return places in the order of their keys, without those whose id comes again later.

    Args:
        ids: [n], or a function that returns them, called only where keys repeat.
    """
    order: npt.NDArray[np.int64] = np.argsort(keys, kind="stable").astype(np.int64)
    ranked = keys[order]
    again = np.flatnonzero(ranked[1:] == ranked[:-1])
    if not len(again):
        return order
    keep = np.ones(len(order), dtype=bool)
    if keys.dtype == np.int64:
        keep[again] = False
        return order[keep]
    suspects = np.union1d(again, again + 1)[::-1]
    names = ids() if callable(ids) else ids
    seen = set()
    for place, name in zip(
        suspects, names.take(pa.array(order[suspects])).to_pylist(), strict=True
    ):
        keep[place] = name not in seen
        seen.add(name)
    return order[keep]
