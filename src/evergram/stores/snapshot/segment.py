"""A segment: rows of one version in an immutable safetensors file, mapped and found by their ids.

The file has `vectors` [n, D] and `check` [n] in the order of writing, and the ids: `id` [n], or
`text` and `offset` of strings. Where they are not in the order of their keys, `key` and `row` say
at which row each sorted key is.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evergram.atomic_files import commit, part_of
from evergram.errors import IntegrityError
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.rows import Checks, Floats, Rows

Places: TypeAlias = npt.NDArray[np.int64]
# Ids are sorted and found by keys: an int64 id is its own key, a text's is a hash (uint64).
Keys: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]

# Room for the length of the header and the header, which is written last.
HEADER = 1024
DTYPES = {"F32": "<f4", "U32": "<u4", "I32": "<i4", "I64": "<i8", "U64": "<u8", "U8": "u1"}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class IndexRecord:
    """A faiss index of a segment.

    Args:
        lists, probes: how many lists it has, and how many are searched for a query.
        recall: of the ten best, measured when it was built.
        sample: stored rows that it was measured with.
        codes, oversample: as `IndexCodes` has them.
    """

    sha256: str
    lists: int
    probes: int
    recall: float
    sample: int
    codes: str = FLOAT32.kind
    oversample: int = FLOAT32.oversample

    @property
    def index_codes(self) -> IndexCodes:
        return IndexCodes(self.codes, self.oversample)


@dataclass(frozen=True)
class SegmentRecord:
    """Rows that were written together.

    Args:
        number: later ones are larger; of two rows with one id, that of the larger counts.
        version: of all its rows; None: these are ids that were deleted.
        sha256: of the file after its header, and then of the header.
    """

    number: int
    version: int | None
    rows: int
    sha256: str
    index: IndexRecord | None = None

    @property
    def name(self) -> str:
        return f"{self.number:d}.safetensors"

    @property
    def files(self) -> list[str]:
        index = self.index
        return [self.name, *([] if index is None else [index_name(self.number, index.index_codes)])]


def index_name(number: int, codes: IndexCodes) -> str:
    """Return the name of an index; of other codes it is another: a reader may have it open."""
    return f"{number:d}.{codes.kind}-{codes.oversample:d}.faiss"


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


class Wanted:
    """Ids that a caller asks for."""

    def __init__(self, ids: pa.Array) -> None:
        self.ids, self.keys = ids, keys_of(ids)

    def ids_at(self, places: Places) -> pa.Array:
        return self.ids.take(pa.array(places))


class Segment:
    """A file of rows, or of deleted ids, which have no vectors.

    Args:
        trusted: this process has just written it, so its hash is not compared.
    Raises: IntegrityError: the file is not what was written. FileNotFoundError.
    """

    def __init__(self, folder: Path, record: SegmentRecord, *, trusted: bool = False) -> None:
        self.record = record
        self._path = folder / record.name
        buffer = pa.memory_map(str(self._path)).read_buffer()
        if not trusted:
            digest = hashlib.sha256(buffer[HEADER:])
            digest.update(buffer[:HEADER])
            if digest.hexdigest() != record.sha256:
                raise self._damaged()
        header = json.loads(buffer[8:HEADER].to_pybytes())
        arrays = {name: _array(buffer, entry) for name, entry in header.items()}
        self.vectors: Floats = arrays["vectors"]
        self._checks: Checks = arrays["check"]
        self.ids: pa.Array
        if "id" in arrays:
            self.ids = pa.array(arrays["id"])
        else:
            begin = [HEADER + header[name]["data_offsets"][0] for name in ("offset", "text")]
            buffers = [None, buffer[begin[0] :], buffer[begin[1] :]]
            kind = pa.large_string() if header["offset"]["dtype"] == "I64" else pa.string()
            self.ids = pa.Array.from_buffers(kind, record.rows, buffers)
        self.keys: Keys = arrays["key"] if "key" in arrays else arrays["id"]
        # The row of each key; None where the rows are in the order of the keys.
        self._rows: npt.NDArray[np.uint32] | None = arrays.get("row")
        self._numbers: Places | None = arrays.get("id")
        # Ids that follow each other without a gap, as ids often do, are found by counting.
        self._first: np.int64 | None = None
        exact, keys = self._numbers is not None, self.keys
        if exact and len(keys) and int(keys[-1]) - int(keys[0]) == len(keys) - 1:
            self._first = keys[0]

    def __len__(self) -> int:
        return self.record.rows

    def recorded(self, record: SegmentRecord) -> Segment:
        """Return the same rows under another record, say one with an index."""
        segment = copy(self)
        segment.record = record
        return segment

    def superseded(self) -> Mask | None:
        """Return the rows, bool [n], whose id comes again in the file: only the last is living."""
        if len(self.keys) == len(self):
            return None
        dead = np.ones(len(self), dtype=bool)
        dead[self.rows_at(np.arange(len(self.keys)))] = False
        return dead

    def rows_at(self, places: Places) -> Places:
        """Return the rows at some places among the keys."""
        if self._rows is None:
            return places
        taken = self._rows[places].astype(np.int64)
        if len(taken) and taken.max() >= len(self):
            raise self._damaged()
        return taken

    def find(self, asked: Wanted | Segment) -> tuple[Places, Places]:
        """Return which of the asked ids are here, in their order, and at which rows."""
        if self._numbers is not None:
            which, at = self._places(asked.keys)
            return which, self.rows_at(at)
        at, pending = np.searchsorted(self.keys, asked.keys), np.arange(len(asked.keys))
        found: list[tuple[Places, Places]] = []
        while len(pending):
            inside = at < len(self.keys)
            pending, at = pending[inside], at[inside]
            same = self.keys[at] == asked.keys[pending]
            pending, at = pending[same], at[same]
            rows = self.rows_at(at)
            equal = pc.equal(self.ids_of(rows), asked.ids_at(pending)).to_numpy(
                zero_copy_only=False
            )
            found.append((pending[equal], rows[equal]))
            # Another id with this key may follow.
            pending, at = pending[~equal], at[~equal] + 1
        which = np.concatenate([pending, *(one for one, _ in found)])
        rows = np.concatenate([at, *(one for _, one in found)])
        order = np.argsort(which)
        return which[order], rows[order]

    def _places(self, keys: Keys) -> tuple[Places, Places]:
        """Return which keys are here, and where among the keys; of ids that are their own keys."""
        if self._first is not None:
            # What is smaller than the first wraps around, and is then past the last.
            steps = (keys - self._first).view(np.uint64)
            which = (steps < len(self.keys)).nonzero()[0]
            return which, steps[which].astype(np.int64)
        at = np.searchsorted(self.keys, keys)
        at[at == len(self.keys)] = 0
        which = np.flatnonzero(self.keys[at] == keys) if len(self.keys) else at[:0]
        return which, at[which]

    def rows_in(self, newer: Segment) -> Places:
        """Return the rows whose ids another segment has too, by looking up the fewer of them."""
        if len(newer) <= len(self):
            return self.find(newer)[1]
        return self.rows_at(newer.find(self)[0])

    def ids_at(self, places: Places) -> pa.Array:
        return self.ids_of(self.rows_at(places))

    @property
    def all_ids(self) -> pa.Array:
        return self.ids_of(np.arange(len(self)))

    def ids_of(self, rows: Places) -> pa.Array:
        """Return the ids of rows [n], in their order."""
        if self._numbers is not None:
            return pa.array(self._numbers[rows])
        ids = self.ids.take(pa.array(rows))
        return ids if ids.type == pa.string() else ids.cast(pa.string())

    def take(self, rows: Places, ids: pa.Array | None = None) -> tuple[Rows, Checks]:
        """Return copies of rows [n] with their checksums.

        Args:
            ids: of the rows, where they are known; they are read otherwise.
        """
        ids = self.ids_of(rows) if ids is None else ids
        version = -1 if self.record.version is None else self.record.version
        return Rows(version, ids, self.vectors[rows]), self._checks[rows]

    def _damaged(self) -> IntegrityError:
        return IntegrityError(
            f"{self._path} is not what was written; restore the store from a copy, or fill it "
            "again."
        )


def _array(buffer: pa.Buffer, entry: dict[str, Any]) -> npt.NDArray[Any]:
    begin, shape = HEADER + entry["data_offsets"][0], entry["shape"]
    count = int(np.prod(shape))
    return np.frombuffer(buffer, DTYPES[entry["dtype"]], count, begin).reshape(shape)


class SegmentWriter:
    """Writes one file of rows of one version; a later row of an id replaces the one before.

    Vectors go to the disk as they come; ids are in memory until the end.

    Args:
        version: None: the rows are deleted ids, which have no vectors.
    """

    def __init__(self, folder: Path, number: int, version: int | None, dim: int) -> None:
        self._number, self._version, self._dim = number, version, dim
        self._path = folder / f"{number}.safetensors"
        self._ids: list[pa.Array] = []
        self._checks: list[Checks] = []
        self._entries: dict[str, Any] = {}
        self._hash, self._size, self.rows = hashlib.sha256(), 0, 0
        self._file = part_of(self._path).open("wb")
        self._file.write(bytes(HEADER))

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
        """Remove the file, unless it is in its place already."""
        # Closing writes what is buffered, for which there may be no room.
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            part_of(self._path).unlink(missing_ok=True)

    def add(self, rows: Rows, checks: Checks) -> None:
        """Add rows [n] with their checksums [n]."""
        self._ids.append(rows.ids)
        self._checks.append(checks)
        self.rows += len(rows)
        self._write(np.ascontiguousarray(rows.vectors, dtype="<f4"))

    def finish(self) -> SegmentRecord:
        """Sync the file, which must have a row, rename it into its place, and return its record."""
        number = pa.types.is_integer(self._ids[0].type)
        size = sum(part.nbytes for part in self._ids)
        # The offsets of a string array have 32 bits.
        large = not number and size > 1 << 30
        ids = pa.concat_arrays(
            [part.cast(pa.large_string()) if large else part for part in self._ids]
        )
        keys = keys_of(ids)
        rows = sorted_places(keys, ids)
        self._entries["vectors"] = self._entry(0, "F32", [self.rows, self._dim])
        self._append("check", np.concatenate(self._checks))
        if self._size % 8:
            self._append("pad", np.zeros(1, np.uint32))
        if number:
            self._append("id", keys)
        in_order = number and np.array_equal(rows, np.arange(len(ids)))
        if not in_order:
            self._append("key", keys[rows])
        if not number:
            width = "<i8" if large else "<i4"
            self._append("offset", np.frombuffer(ids.buffers()[1], width, len(ids) + 1))
        if not in_order:
            self._append("row", rows.astype("<u4"))
        if not number:
            self._append("text", np.frombuffer(ids.buffers()[2] or b" ", "u1"))
        header = json.dumps(self._entries).encode().ljust(HEADER - 8)
        header = len(header).to_bytes(8, "little") + header
        self._hash.update(header)
        self._file.seek(0)
        self._file.write(header)
        self._file.close()
        commit(part_of(self._path), self._path, sync_parent=False)
        return SegmentRecord(self._number, self._version, self.rows, self._hash.hexdigest())

    def _append(self, name: str, values: npt.NDArray[Any]) -> None:
        self._entries[name] = self._entry(self._size, NAMES[values.dtype], list(values.shape))
        self._write(values)

    def _entry(self, begin: int, dtype: str, shape: list[int]) -> dict[str, Any]:
        end = begin + int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    def _write(self, values: npt.NDArray[Any]) -> None:
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1).data if values.size else b""
        self._hash.update(raw)
        self._file.write(raw)
        self._size += values.nbytes


def sorted_places(keys: Keys, ids: pa.Array) -> Places:
    """Return places in the order of their keys, without those whose id [n] comes again later."""
    order: Places = np.argsort(keys, kind="stable")
    ranked = keys[order]
    again = np.flatnonzero(ranked[1:] == ranked[:-1])
    if not len(again):
        return order
    keep = np.ones(len(order), dtype=bool)
    if keys.dtype == np.int64:
        keep[again] = False
        return order[keep]
    suspects = np.union1d(again, again + 1)[::-1]
    seen = set()
    names = ids.take(pa.array(order[suspects])).to_pylist()
    for place, name in zip(suspects, names, strict=True):
        keep[place] = name not in seen
        seen.add(name)
    return order[keep]
