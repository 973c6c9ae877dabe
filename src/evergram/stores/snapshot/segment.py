"""A segment: rows of one version in an immutable file mapped into memory, found by their ids."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

from evergram.errors import IntegrityError
from evergram.stores.snapshot.snapshot_record import FileRecord, SegmentRecord
from evergram.stores.store import Checks, Floats

Places: TypeAlias = npt.NDArray[np.int64]
# Ids are sorted and found by keys: an int64 id is its own key, a text's is a hash (uint64).
Keys: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]


def keys_of(ids: pa.Array) -> Keys:
    """Return the keys [n] of ids; two texts may have one key, so ids are compared as well."""
    if pa.types.is_integer(ids.type):
        return np.asarray(ids.to_numpy(zero_copy_only=False), dtype=np.int64)
    hashes = (text_key(key) for key in ids.to_pylist())
    return np.fromiter(hashes, dtype=np.uint64, count=len(ids))


def text_key(text: str) -> int:
    """Return a hash that is the same in every process, unlike `hash`."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class Keyed(Protocol):
    """Ids that can be looked for."""

    @property
    def keys(self) -> Keys: ...

    def ids_at(self, places: Places) -> pa.Array:
        """Return the ids at some places among the keys."""


@dataclass(frozen=True)
class Wanted:
    """Ids that a caller asks for, with their keys."""

    ids: pa.Array
    keys: Keys

    @classmethod
    def of(cls, ids: pa.Array) -> Wanted:
        return cls(ids, keys_of(ids))

    def ids_at(self, places: Places) -> pa.Array:
        return self.ids.take(pa.array(places))


@dataclass(frozen=True)
class SegmentBatch:
    """Rows that lie together in a file: ids [b], vectors [b, D] and checks [b]; D is 0 of deleted
    ids."""

    ids: pa.Array
    vectors: Floats
    checks: Checks


class Segment:
    """A file of rows, or of deleted ids, which have no vectors.

    Args:
        trusted: this process has just written it, so its hash is not compared.
    Raises: IntegrityError: a file is not what was written. FileNotFoundError.
    """

    def __init__(self, folder: Path, record: SegmentRecord, *, trusted: bool = False) -> None:
        self.record = record
        buffer = mapped(folder, record.data, trusted)
        reader = pa.ipc.open_file(buffer)
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        self._batches = [_batch(batch) for batch in batches]
        self._size = len(self._batches[0].ids)
        self._words = np.frombuffer(buffer, "<u4", count=len(buffer) // 4)
        self._windows: dict[int, Checks] = {}
        self._vectors_at = self._places([b.vectors for b in self._batches])
        self._checks_at = self._places([b.checks for b in self._batches])
        # Where a key is in the file; None where the file is in the order of the keys.
        self._rows: npt.NDArray[Any] | None = None
        if record.lookup is None:
            self.keys: Keys = _plain(batches[0]["key" if "key" in reader.schema.names else "id"])
        else:
            batch = pa.ipc.open_file(mapped(folder, record.lookup, trusted)).get_batch(0)
            self.keys, rows = _plain(batch["key"]), _plain(batch["row"])
            in_order = len(rows) == len(self) and np.array_equal(rows, np.arange(len(self)))
            self._rows = None if in_order else rows
        self._exact = pa.types.is_integer(self._batches[0].ids.type)
        # Ids that follow each other without a gap, as ids often do, are found by counting.
        self._first: np.int64 | None = None
        if self._exact:
            self._ids_at = self._places([_plain(b.ids) for b in self._batches])
            if len(self.keys) and int(self.keys[-1]) - int(self.keys[0]) == len(self.keys) - 1:
                self._first = self.keys[0]

    def __len__(self) -> int:
        return self.record.rows

    def recorded(self, record: SegmentRecord) -> Segment:
        """Return the same rows under another record, say one with an index."""
        segment = copy(self)
        segment.record = record
        return segment

    @property
    def batches(self) -> Sequence[SegmentBatch]:
        return self._batches

    @property
    def dim(self) -> int:
        return int(self._batches[0].vectors.shape[1])

    def superseded(self) -> Mask | None:
        """Return the rows, bool [n], whose id comes again in the file: only the last is living."""
        if len(self.keys) == len(self):
            return None
        dead = np.ones(len(self), dtype=bool)
        dead[self.rows_at(np.arange(len(self.keys)))] = False
        return dead

    def rows_at(self, places: Places) -> Places:
        """Return the rows of the file at some places among the keys."""
        if self._rows is None:
            return places
        taken = self._rows[places].astype(np.int64)
        if len(taken) and taken.max() >= len(self):
            raise self._damaged()
        return taken

    def ids_at(self, places: Places) -> pa.Array:
        return self.ids(self.rows_at(places))

    def find(self, asked: Keyed) -> tuple[Places, Places]:
        """Return which of the asked ids are here, in their order, and at which rows."""
        if self._exact:
            return self._find_exact(asked.keys)
        at = np.searchsorted(self.keys, asked.keys)
        pending = np.arange(len(asked.keys))
        which: list[Places] = []
        rows: list[Places] = []
        while len(pending):
            inside = at < len(self.keys)
            pending, at = pending[inside], at[inside]
            same = self.keys[at] == asked.keys[pending]
            pending, at = pending[same], at[same]
            candidates = self.rows_at(at)
            equal = pc.equal(self.ids(candidates), asked.ids_at(pending)).to_numpy(
                zero_copy_only=False
            )
            which.append(pending[equal])
            rows.append(candidates[equal])
            # Another id with this key may follow.
            pending, at = pending[~equal], at[~equal] + 1
        candidates, places = np.concatenate([*which, pending]), np.concatenate([*rows, at])
        order = np.argsort(candidates)
        return candidates[order], places[order]

    def _find_exact(self, keys: Keys) -> tuple[Places, Places]:
        """Return the same as `find` where ids are their own keys."""
        if self._first is not None:
            # What is smaller than the first wraps around, and is then past the last.
            steps = (keys - self._first).view(np.uint64)
            which = (steps < len(self.keys)).nonzero()[0]
            at = steps[which].astype(np.int64)
        else:
            at = np.searchsorted(self.keys, keys)
            at[at == len(self.keys)] = 0
            which = np.flatnonzero(self.keys[at] == keys) if len(self.keys) else at[:0]
            at = at[which]
        rows = self.rows_at(at)
        if self._rows is not None:
            names = self.ids(rows).to_numpy(zero_copy_only=False)
            if not np.array_equal(names, keys[which]):
                raise self._damaged()
        return which, rows

    def ids(self, rows: Places) -> pa.Array:
        """Return the ids of rows [n] of the file, in their order."""
        if self._exact:
            words = self._gathered(self._ids_at, rows, 2)
            return pa.array(words.view("<i8").reshape(-1))
        if len(self._batches) == 1:
            return self._batches[0].ids.take(pa.array(rows))
        if not len(rows):
            return self._batches[0].ids.slice(0, 0)
        cut = self._by_batch(rows)
        parts = [self._batches[b].ids.take(pa.array(rows[at] - b * self._size)) for b, at in cut]
        order = np.argsort(np.concatenate([at for _, at in cut]))
        return pa.concat_arrays(parts).take(pa.array(order))

    def vectors(self, rows: Places) -> Floats:
        """Return copies of the vectors of rows [n], [n, D], in their order."""
        return self._gathered(self._vectors_at, rows, self.dim).view("<f4")

    def checks(self, rows: Places) -> Checks:
        """Return copies of the checksums of rows [n], in their order."""
        return self._gathered(self._checks_at, rows, 1).reshape(-1)

    def _places(self, arrays: Sequence[npt.NDArray[Any]]) -> Places:
        """Return the word of the file at which each array begins."""
        start = self._words.__array_interface__["data"][0]
        return np.array([a.__array_interface__["data"][0] - start for a in arrays]) // 4

    def _gathered(self, at: Places, rows: Places, width: int) -> Checks:
        """Return words [n, width] of rows, from all batches at once: a pass over each batch would
        slow down a request for a hundred rows."""
        batch = rows // self._size
        first = at[batch] + (rows - batch * self._size) * width
        if width not in self._windows:
            self._windows[width] = sliding_window_view(self._words, width)
        gathered: Checks = self._windows[width][first]
        return gathered

    def _by_batch(self, rows: Places) -> list[tuple[int, Places]]:
        batch = rows // self._size
        return [(int(b), np.flatnonzero(batch == b)) for b in np.unique(batch)]

    def _damaged(self) -> IntegrityError:
        return IntegrityError(
            f"Segment {self.record.data.name} is damaged; restore the store from a copy, or fill "
            "it again."
        )


def mapped(folder: Path, record: FileRecord, trusted: bool = False) -> pa.Buffer:
    """Return a file mapped into memory, after a comparison with its SHA-256 unless it is
    trusted."""
    path = folder / record.name
    buffer = pa.memory_map(str(path)).read_buffer()
    if not trusted and hashlib.sha256(buffer).hexdigest() != record.sha256:
        raise IntegrityError(
            f"{path} is not what was written (its SHA-256 differs); restore the store from a "
            "copy, or fill it again."
        )
    return buffer


def _batch(batch: pa.RecordBatch) -> SegmentBatch:
    if "vector" not in batch.schema.names:
        size = batch.num_rows
        return SegmentBatch(batch["id"], np.zeros((size, 0), np.float32), np.zeros(size, np.uint32))
    column = batch["vector"]
    vectors = _plain(column.values).reshape(-1, column.type.list_size)
    return SegmentBatch(batch["id"], vectors, _plain(batch["check"]))


def _plain(column: pa.Array) -> npt.NDArray[Any]:
    return np.asarray(column.to_numpy(zero_copy_only=True))
