"""The default store: immutable files in a folder, memory-mapped.

Rows of one version that are written together form a segment: `SHA.vectors` has the vectors, float32
[n, D], and `SHA.arrow` their ids in ascending order and their checksums. `SHA.dead` has one bit per
row, set if the row is deleted; `SHA.faiss` is an index. Files never change and are named by their
SHA-256. `store.json` lists them; a commit replaces it.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from filelock import Timeout
from pydantic import Field, TypeAdapter

from evergram.atomic_files import commit, file_lock, sync, write_bytes
from evergram.errors import DataError, FormatError, IntegrityError, StoreError, reason_and_remedy
from evergram.stores.store import (
    ID_TYPES,
    Checks,
    Column,
    Floats,
    Hits,
    Keys,
    Part,
    Places,
    ReadableStore,
    Rows,
    Space,
    Store,
    find,
    joined_hits,
    keys_of,
    products,
    row_checks,
)

T = TypeVar("T")

FORMAT_VERSION = 1
NAME = "store.json"
BLOCK = 16_384  # rows copied at once
WAIT = 10.0  # seconds to wait for another process that writes
INDEXED_FROM = 200_000  # minimum number of rows for an index; exact search of fewer rows is fast
# This many segments of similar size are merged into one of the next size. A row is rewritten
# log_4 N times, and there are at most 3 segments of each size.
FANOUT = 4
SCORES = 1 << 19  # scores computed at once, few enough for the processor's cache
LEAST_ROWS, MOST_ROWS = 1024, 1 << 16
# The index must have this recall of the nearest rows, measured on a sample of stored rows.
RECALL, NEAREST, SAMPLE = 0.95, 10, 200
TRAINING = 40  # training rows per list for finding centres; faiss needs at least 39
# Scores [Q, b], and the rows [b] of a segment, or [Q, b] if they differ by query.
Scored = tuple[Floats, Places]
Mask: TypeAlias = npt.NDArray[np.bool_]
# The pattern prevents a forged store.json from naming files outside the folder.
Sha = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class IndexRecord:
    """A faiss index of a segment: its number of lists, and the number that a search probes."""

    sha256: Sha
    lists: int
    probes: int


@dataclass(frozen=True)
class SegmentRecord:
    """Rows that were written together: the SHA-256 of their files, and the number deleted."""

    version: int
    dim: int
    rows: int
    vectors: Sha
    ids: Sha
    gone: int = 0
    dead: Sha | None = None
    index: IndexRecord | None = None

    @property
    def living(self) -> int:
        return self.rows - self.gone

    @property
    def files(self) -> list[str]:
        named = {"vectors": self.vectors, "arrow": self.ids, "dead": self.dead}
        named["faiss"] = None if self.index is None else self.index.sha256
        return [f"{sha256}.{kind}" for kind, sha256 in named.items() if sha256 is not None]


@dataclass(frozen=True)
class SnapshotRecord:
    """The content of `store.json`."""

    id_type: str
    generation: int = 0
    spaces: tuple[Space, ...] = ()
    segments: tuple[SegmentRecord, ...] = ()
    side: str | None = None


@dataclass(frozen=True, eq=False)
class Segment:
    """The files of a segment, memory-mapped.

    Args:
        vectors: [n, D]; ids, keys and checks [n] are in the same order, ascending by key.
        dead: bool [n], True for deleted rows; None if there are none.
        index: the faiss index; None without an index or if faiss is not installed.
    """

    record: SegmentRecord
    vectors: Floats
    ids: pa.Array
    keys: Keys
    checks: Checks
    dead: Mask | None
    index: Any
    columns: dict[Column, Floats] = field(default_factory=dict)

    def scores(self, queries: Floats, rows: slice | Places, of: Column | None) -> Floats:
        """Return the scores [Q, b] of rows, with the values of `of` as their last coordinate."""
        if of is None:
            return products(queries, self.vectors[rows])
        if of not in self.columns:
            starts = range(0, len(self.keys), BLOCK)
            values = np.concatenate([of(self.vectors[i : i + BLOCK]) for i in starts])
            self.columns[of] = np.minimum(values, np.finfo(np.float32).max).astype(np.float32)
        scores = products(queries[:, :-1], self.vectors[rows])
        scores += queries[:, -1:] * self.columns[of][rows]
        return scores

    def find(self, ids: pa.Array, keys: Keys) -> tuple[Places, Places]:
        """Return the indices of the ids [n] that have a living row, in order, and these rows."""
        which, rows = find(self.keys, ids, keys, lambda rows: self.ids.take(pa.array(rows)))
        if self.dead is None:
            return which, rows
        living = ~self.dead[rows]
        return which[living], rows[living]

    def living(self) -> Places:
        """Return the rows that are not deleted."""
        return np.arange(len(self.keys)) if self.dead is None else np.flatnonzero(~self.dead)

    def take(self, rows: Places, ids: pa.Array | None = None) -> tuple[Rows, Checks]:
        """Return copies of rows [n] with their stored checksums; `ids` are their ids if known."""
        if ids is None:
            ids = self.ids.take(pa.array(rows))
            ids = ids if pa.types.is_integer(ids.type) else ids.cast(pa.string())
        return Rows(self.record.version, ids, self.vectors[rows]), self.checks[rows]

    def blocks(self, size: int) -> Iterator[tuple[Rows, Checks]]:
        """Yield copies of all living rows, with their checksums."""
        rows = self.living()
        for start in range(0, len(rows), size):
            yield self.take(rows[start : start + size])


def read_segment(folder: Path, record: SegmentRecord, known: Segment | None = None) -> Segment:
    """Map the files of a segment, reusing those already mapped in `known`. Raises: IntegrityError,
    FileNotFoundError."""

    def path_of(sha256: str, kind: str) -> Path:
        path = folder / f"{sha256}.{kind}"
        if digest_of(path) != sha256:
            raise IntegrityError(
                f"{path} is damaged; restore the store from a copy, or fill it again."
            )
        return path

    dead, index = None, None
    if record.dead is not None:
        bits = np.frombuffer(path_of(record.dead, "dead").read_bytes(), np.uint8)
        dead = np.unpackbits(bits, count=record.rows, bitorder="little").view(np.bool_)
    if known is not None and known.record.index == record.index:
        index = known.index
    elif record.index is not None:
        path = path_of(record.index.sha256, "faiss")
        with suppress(DataError):
            faiss = faiss_module()
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
    if known is not None:
        return replace(known, record=record, dead=dead, index=index)
    vectors = _mapped(path_of(record.vectors, "vectors"), record.dim)
    table = pa.ipc.open_file(pa.memory_map(str(path_of(record.ids, "arrow")))).read_all()
    arrays = {name: table[name].chunk(0) for name in table.column_names}
    keys = arrays.get("key", arrays["id"]).to_numpy()
    return Segment(record, vectors, arrays["id"], keys, arrays["check"].to_numpy(), dead, index)


def write_segment(
    folder: Path, space: Space, blocks: Iterable[tuple[Rows, Checks]]
) -> list[SegmentRecord]:
    """Write rows of a version; if an id is repeated, its last row counts. Vectors are written as
    they arrive, and ids are kept in memory. Returns: the segment, or an empty list without rows."""
    path, ids, checks = folder / "new", [], []
    with path.open("wb") as file:
        for rows, block_checks in blocks:
            file.write(np.ascontiguousarray(rows.vectors, dtype="<f4").data)
            is_text = pa.types.is_string(rows.ids.type)
            # string arrays have 32-bit offsets, which may overflow.
            ids.append(rows.ids.cast(pa.large_string()) if is_text else rows.ids)
            checks.append(block_checks)
    if not ids:
        return []
    joined = pa.concat_arrays(ids)
    keys = keys_of(joined)
    order: Places = np.argsort(keys, kind="stable")
    ranked = keys[order]
    if (ranked[1:] == ranked[:-1]).any():
        # Keep the last row of each id: the first one in reversed order.
        codes = joined.dictionary_encode().indices.to_numpy()[::-1]
        last = np.zeros(len(joined), dtype=bool)
        last[len(joined) - 1 - np.unique(codes, return_index=True)[1]] = True
        order = order[last[order]]
    if not np.array_equal(order, np.arange(len(joined))):
        path = _reordered(path, order, space.dim)
    vectors = named_by_digest(path, "vectors")
    columns = {"id": joined.take(pa.array(order)), "check": np.concatenate(checks)[order]}
    if not pa.types.is_integer(joined.type):
        columns["key"] = keys[order]
    table = pa.table(columns)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    sha256 = named_by_digest(path, "arrow")
    return [SegmentRecord(space.version, space.dim, len(order), vectors, sha256)]


def _reordered(path: Path, order: Places, dim: int) -> Path:
    source, ordered = _mapped(path, dim), path.with_name("ordered")
    with ordered.open("wb") as file:
        for start in range(0, len(order), BLOCK):
            file.write(source[order[start : start + BLOCK]].data)
    return ordered


def _mapped(path: Path, dim: int) -> Floats:
    return np.frombuffer(pa.memory_map(str(path)).read_buffer(), "<f4").reshape(-1, dim)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def named_by_digest(path: Path, kind: str) -> str:
    """Sync a complete file and rename it to its digest. Returns: its SHA-256."""
    sha256 = digest_of(path)
    commit(path, path.with_name(f"{sha256}.{kind}"), sync_parent=False)
    return sha256


class Generation:
    """The state of a snapshot after one commit: its record and segments. It never changes, so
    threads can read one generation while the next is written.

    `store.json` stays open, so that no later file can reuse its inode. Comparing inodes then shows
    whether there is a newer generation.

    Raises: OSError. IntegrityError: a file is damaged. FormatError: a later Evergram wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.segments: tuple[Segment, ...] = ()
        self._path = str(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(self._descriptor, "rb", closefd=False) as file:
            self.record: SnapshotRecord = _parsed(file.read(), path)
            self._identity = _identity(os.fstat(self._descriptor))

    def of(self, version: int) -> list[Segment]:
        return [segment for segment in self.segments if segment.record.version == version]

    def is_newest(self) -> bool:
        """Return True if `store.json` is still this file or was removed: an open store remains
        readable if another process removes it."""
        try:
            status = os.stat(self._path)  # noqa: PTH116 - faster than Path.stat, called often
        except FileNotFoundError:
            return True
        return self._identity == _identity(status)

    def __del__(self) -> None:
        # Do not close it earlier: another thread may be comparing inodes.
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_dev, status.st_size, status.st_mtime_ns


_RECORD = TypeAdapter(SnapshotRecord)


def _parsed(text: bytes, path: Path) -> SnapshotRecord:
    try:
        content = json.loads(text)
        body = content["store"]
        if content["sha256"] != _digest(body):
            raise ValueError
        if body["format_version"] == FORMAT_VERSION:
            return _RECORD.validate_python(body)
    except (ValueError, KeyError, TypeError):
        raise IntegrityError(
            f"{path} is damaged; restore the store from a copy, or fill it again."
        ) from None
    raise FormatError(
        f"{path} has format_version {body['format_version']}; this Evergram reads "
        f"{FORMAT_VERSION}; use a later Evergram."
    )


def write_record(path: Path, record: SnapshotRecord) -> None:
    """Replace `store.json` atomically."""
    body: dict[str, Any] = {"format_version": FORMAT_VERSION, **asdict(record)}
    text = json.dumps({"sha256": _digest(body), "store": body}, indent=1)
    write_bytes(path, text.encode() + b"\n")


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


class SnapshotStore(Store):
    """A folder with `store.json` and the segments that it lists. One process writes at a time, any
    number of processes read, and each read sees all writes acknowledged before it.

    `load` writes a version as one segment. Rows written later, e.g. by a backfill, form small
    segments, which are merged over time; rows that they replace are marked as deleted.

    Files are checked against their SHA-256 when opened, and rows against their checksum when
    fetched or found by a search. One kind of damage is not noticed until the store is reopened: if
    bytes are damaged while a file is open, a search may miss a row.
    """

    kind: ClassVar[str] = "snapshot"

    # The generation that a view reads; None if each call reads the newest.
    _moment: Generation | None = None

    def __init__(self, path: Path) -> None:
        self._path, self._segments = path, path / "segments"
        self.address = f"snapshot:{path}"
        self._generation: Generation | None = None
        self._refreshing, self._one_writer = threading.RLock(), threading.RLock()
        # The file lock is for other processes, `_one_writer` for threads of this process.
        self._file_lock = file_lock(path / ".lock", thread_local=False)
        self.id_type = ID_TYPES[self._record.id_type]

    @classmethod
    def open(cls, address: str, create: str | None = None) -> SnapshotStore:
        """See `open_store`. Raises: IntegrityError: a file is damaged."""
        path = Path(address.removeprefix("snapshot:"))
        record, segments = path / NAME, path / "segments"
        try:
            if not record.exists():
                if create is None:
                    raise DataError(
                        f"There is no store at {path}; give a store's folder, or fill it."
                    )
                # Writing removes unlisted files, so never adopt a folder with other files.
                if segments.is_dir() and any(segments.iterdir()) and not record.exists():
                    raise StoreError(
                        f"{path} cannot become a store: it has a folder 'segments' with other "
                        f"files, but no {NAME}; give another folder."
                    )
                segments.mkdir(parents=True, exist_ok=True)
                with file_lock(path / ".lock", timeout=WAIT):
                    if not record.exists():
                        write_record(record, SnapshotRecord(create))
                        sync(path.parent)
        except OSError as error:
            what = "opened" if create is None else "made a store"
            raise StoreError(
                f"{path} cannot be {what}: {error.strerror or error}; give another folder."
            ) from error
        return cls(path)

    @property
    def absolute_address(self) -> str:
        return f"snapshot:{self._path.resolve()}"

    @property
    def side(self) -> str | None:
        return self._record.side

    def spaces(self) -> dict[int, Space]:
        return {space.version: space for space in self._record.spaces}

    def count(self) -> dict[int, int]:
        held = self._record
        counts = {space.version: 0 for space in held.spaces}
        for segment in held.segments:
            counts[segment.version] += segment.living
        return {version: count for version, count in counts.items() if count}

    def state(self, version: int) -> object:
        return [one.record.vectors for one in self._current().of(version)]

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        view = copy(self)
        # A generation never changes, and its files stay mapped even if others remove them.
        view._moment = self._current()
        return work(view)

    def close(self) -> None:
        """Close the files; a later call opens them again."""
        self._generation = None

    def load(self, space: Space, blocks: Iterable[Rows]) -> int:
        """Write all rows of a version into one segment and return their number.

        All rows are committed together at the end; if the process is killed before, none is stored.

        Raises: as `upsert`; DataError: a block has rows of another version.
        """
        self.add_space(space)
        total = 0

        def checked() -> Iterator[tuple[Rows, Checks]]:
            nonlocal total
            for block in blocks:
                if block.version != space.version:
                    raise DataError(
                        f"Rows of version {block.version} cannot be loaded as version "
                        f"{space.version}; load each version separately."
                    )
                rows = self.checked(block)
                total += len(rows)
                if len(rows):
                    yield rows, row_checks(rows)

        with self._writing():
            for record in write_segment(self._segments, space, checked()):
                segment = read_segment(self._segments, record)
                self._add(segment.ids, segment.keys, [record])
        return total

    def build_index(self) -> list[int]:
        """Build a faiss index for each version with at least INDEXED_FROM rows that are not
        indexed, merged into one segment, unless exact search is as fast. Rows written later are
        searched exactly, in addition to the index.

        Raises: DataError: an index is needed, but faiss is not installed.
        """
        with self._writing():
            for version in self.spaces():
                segments = [s for s in self._current().of(version) if s.record.index is None]
                if sum(segment.record.living for segment in segments) < INDEXED_FROM:
                    continue
                if len(segments) > 1 or segments[0].dead is not None:
                    segments = [self._merged(segments)]
                index = build(self._segments, segments[0])
                if index is not None:
                    self._replace(segments, [replace(segments[0].record, index=index)])
        return sorted({s.version for s in self._record.segments if s.index is not None})

    @property
    def _record(self) -> SnapshotRecord:
        return self._current().record

    def _current(self) -> Generation:
        """Return a view's generation, otherwise the newest. Raises: IntegrityError, StoreError."""
        if self._moment is not None:
            return self._moment
        generation = self._generation
        try:
            if generation is None or not generation.is_newest():
                generation = self._refreshed()
        except OSError as error:
            sentence = f"{self.address} cannot be read: {error.strerror or error}."
            raise StoreError(sentence) from error
        return generation

    def _refreshed(self) -> Generation:
        path = self._path / NAME
        with self._refreshing:
            while True:
                before, after = self._generation, Generation(path)
                known = {s.record.ids: s for s in before.segments} if before else {}
                try:
                    after.segments = tuple(
                        read_segment(self._segments, record, known.get(record.ids))
                        for record in after.record.segments
                    )
                except FileNotFoundError as error:
                    # Another process may have committed a newer generation in the meantime.
                    if after.is_newest():
                        raise IntegrityError(
                            f"A file that {path} lists is missing ({error.filename or error}); "
                            "restore the store from a copy, or fill it again."
                        ) from None
                    continue
                self._generation = after
                return after

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the write lock, and delete all unlisted files before and after: those of killed or
        failed writes, and replaced ones. Raises: StoreError."""
        try:
            with self._one_writer, self._file_lock.acquire(timeout=WAIT):
                if self._file_lock.lock_counter > 1:
                    raise StoreError(
                        f"{self.address} is being loaded; the source of its blocks must not write "
                        "to it."
                    )
                self._clear()
                try:
                    yield
                finally:
                    self._clear()
        except Timeout:
            raise StoreError(
                f"Another process is writing to {self.address}; wait for it and try again."
            ) from None
        except OSError as error:
            raise StoreError(
                f"{self.address} cannot be written: {reason_and_remedy(error, 'it is as it was')}."
            ) from error

    def _clear(self) -> None:
        """Delete all unlisted files. Readers can still use files that they have mapped; a file that
        cannot be deleted now is deleted by a later write."""
        listed = {name for segment in self._record.segments for name in segment.files}
        with suppress(OSError):
            for path in self._segments.iterdir():
                if path.name not in listed:
                    path.unlink()

    def _commit(self, **changed: Any) -> None:
        """Commit a record with changed fields, and delete unlisted files."""
        before = self._record
        record = replace(before, generation=before.generation + 1, **changed)
        try:
            sync(self._segments)
            write_record(self._path / NAME, record)
        except OSError as error:
            # If the error came after the rename, the write has taken effect.
            if self._record.generation == before.generation:
                raise
            raise StoreError(
                f"{self.address} was written, but the disk did not confirm it: "
                f"{error.strerror or error}; write the same rows again."
            ) from error
        self._clear()

    def _add(self, ids: pa.Array, keys: Keys, records: list[SegmentRecord]) -> None:
        """Commit new segments with these ids, whose other rows are deleted. Then merge segments
        until there are few."""
        remaining = []
        for segment in self._current().segments:
            rows, record = segment.find(ids, keys)[1], segment.record
            if len(rows):
                dead = np.zeros(record.rows, bool) if segment.dead is None else segment.dead.copy()
                dead[rows] = True
                path = self._segments / "new"
                path.write_bytes(np.packbits(dead, bitorder="little").tobytes())
                sha256 = named_by_digest(path, "dead")
                record = replace(record, gone=record.gone + len(rows), dead=sha256)
            if record.living:
                remaining.append(record)
        if (segments := (*remaining, *records)) == self._record.segments:
            return
        self._commit(segments=segments)
        # The rows are committed. If the disk is full now, a later write merges the segments.
        with suppress(OSError):
            while to_merge := _next_merge(self._current()):
                self._merged(to_merge)

    def _merged(self, segments: list[Segment]) -> Segment:
        """Merge segments of one version into one and return it."""
        first = segments[0].record

        def verified() -> Iterator[tuple[Rows, Checks]]:
            for segment in segments:
                for rows, checks in segment.blocks(BLOCK):
                    # Verify before writing: a damaged row must not get a valid file hash.
                    self._verify(rows, checks)
                    yield rows, checks

        space = self.spaces()[first.version]
        self._replace(segments, write_segment(self._segments, space, verified()))
        return self._current().segments[-1]

    def _replace(self, segments: list[Segment], records: list[SegmentRecord]) -> None:
        removed = [segment.record for segment in segments]
        others = [record for record in self._record.segments if record not in removed]
        self._commit(segments=(*others, *records))

    def _add_space(self, space: Space) -> None:
        with self._writing():
            spaces = self.spaces()
            if space.version not in spaces:
                added = {**spaces, space.version: space}
                self._commit(spaces=tuple(added[version] for version in sorted(added)))

    def _set_side(self, side: str) -> None:
        with self._writing():
            if self.side is None:
                self._commit(side=side)

    def _write(self, rows: Rows, checks: Checks) -> None:
        with self._writing():
            space = self.spaces()[rows.version]
            written = write_segment(self._segments, space, [(rows, checks)])
            self._add(rows.ids, keys_of(rows.ids), written)

    def _delete(self, ids: pa.Array) -> None:
        with self._writing():
            ids = ids.unique()
            self._add(ids, keys_of(ids), [])

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        keys, blocks = keys_of(ids), []
        for segment in self._current().segments:
            which, rows = segment.find(ids, keys)
            if len(rows):
                # Pass the requested ids: the checksum then detects a row of another id.
                found_ids = ids if len(which) == len(ids) else ids.take(pa.array(which))
                blocks.append(segment.take(rows, found_ids))
        return blocks

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        for segment in self._current().of(version):
            yield from segment.blocks(size)

    def takes_columns(self, version: int) -> bool:
        return all(segment.index is None for segment in self._current().of(version))

    def _search(self, parts: list[Part], k: int, ids: pa.Array | None, exact: bool) -> list[Hits]:
        # All versions at once, because an id is in one of them.
        asked = {part[0]: part[1:] for part in parts}
        segments = [s for s in self._current().segments if s.record.version in asked]
        wanted = None if ids is None else (ids, keys_of(ids))
        # Rows are numbered consecutively over all segments.
        starts = np.cumsum([0, *(segment.record.rows for segment in segments)])

        def scored() -> Iterator[Scored]:
            for segment, start in zip(segments, starts, strict=False):
                queries, offsets, of = asked[segment.record.version]
                among = None if wanted is None else segment.find(*wanted)[1]
                for scores, rows in scored_rows(segment, queries, k, among, of):
                    yield scores + offsets[:, None], rows + start

        best = []
        for i, rows in enumerate(best_rows(len(parts[0][1]), k, scored())):
            found, of_segment = [], np.searchsorted(starts, rows, "right") - 1
            for number in np.unique(of_segment):
                segment, places = segments[number], rows[of_segment == number] - starts[number]
                queries, offsets, of = asked[segment.record.version]
                copied, checks = segment.take(places)
                self._verify(copied, checks)
                scores = segment.scores(queries[i : i + 1], places, of)[0] + offsets[i]
                found.append(Hits(copied.ids, scores, np.full(len(places), copied.version)))
            hits = joined_hits(found, self.id_type)
            best.append(hits.ranked(hits.scores))
        return best


def _next_merge(generation: Generation) -> list[Segment]:
    """Return segments of one version to merge into one; an empty list if there are few enough."""
    by_size: dict[tuple[int, int], list[Segment]] = {}
    for segment in generation.segments:
        record = segment.record
        # Rewrite a segment of many deleted rows, which only an index skips; it is lost by that.
        if record.gone * (16 if record.index is None else 2) > record.rows:
            return [segment]
        size = (record.rows.bit_length() - 1) // 2  # ⌊log_4 rows⌋
        same_size = by_size.setdefault((record.version, size), [])
        same_size.append(segment)
        if len(same_size) == FANOUT:
            return same_size
    return []


# Search in a segment: over all rows, or with a faiss index (IVF), of which a query probes a few
# lists.


def faiss_module() -> Any:
    """Return faiss. Raises: DataError: it is not installed."""
    try:
        import faiss
    except ImportError:
        raise DataError(
            "A fast index of a snapshot needs faiss: pip install 'evergram[faiss]'."
        ) from None
    return faiss


def best_rows(queries: int, k: int, scored: Iterable[Scored]) -> list[Places]:
    """Return, for each query, the rows [≤k] with the largest scores above −∞, in any order."""
    best = [(np.zeros(0, np.float32), np.zeros(0, np.int64))] * queries
    # The k-th best score so far, which a row must exceed; −∞ until there are k.
    limits = np.full(queries, -np.inf, dtype=np.float32)
    for scores, rows in scored:
        for i in np.flatnonzero(scores.max(axis=1, initial=-np.inf) > limits):
            chosen = np.flatnonzero(scores[i] > limits[i])
            chosen = chosen[_largest(scores[i, chosen], k)]
            chosen_rows = (rows if rows.ndim == 1 else rows[i])[chosen]
            joined = np.concatenate([best[i][0], scores[i, chosen]])
            top = _largest(joined, k)
            best[i] = joined[top], np.concatenate([best[i][1], chosen_rows])[top]
            if len(top) == k:
                limits[i] = best[i][0].min()
    return [rows for _, rows in best]


def _largest(scores: Floats, k: int) -> Places:
    if len(scores) <= k:
        return np.arange(len(scores))
    some, groups = np.arange(len(scores)), 16 * k
    if len(scores) > 16 * groups:
        # At least k scores reach the k-th largest of the groups' maxima, and few do.
        most = scores[: len(scores) // groups * groups].reshape(groups, -1).max(axis=1)
        some = np.flatnonzero(scores >= np.partition(most, groups - k)[groups - k])
    return some[np.argpartition(scores[some], len(some) - k)[-k:]]


def scored_rows(
    segment: Segment, queries: Floats, k: int, rows: Places | None, of: Column | None = None
) -> Iterator[Scored]:
    """Yield scored rows that include the k best living rows, or the k best of `rows`."""
    if rows is None and segment.index is not None and of is None:
        found = _by_index(segment, queries, min(k, segment.record.living))
        if found is not None:
            yield found
            return
    count = segment.record.rows if rows is None else len(rows)
    size = min(MOST_ROWS, max(LEAST_ROWS, SCORES // len(queries)))
    for start in range(0, count, size):
        part = slice(start, min(start + size, count))
        block = np.arange(part.start, part.stop) if rows is None else rows[part]
        scores = segment.scores(queries, part if rows is None else block, of)
        if rows is None and segment.dead is not None:
            np.copyto(scores, -np.inf, where=segment.dead[part])
        yield scores, block


def _by_index(segment: Segment, queries: Floats, k: int) -> Scored | None:
    """Return the k nearest living rows of each query. Return None if at least half of the lists
    would be probed, which is as slow as exact search, or if a score overflows float32 in faiss, in
    which case only our exact `products` are reliable."""
    record = segment.record.index
    assert record is not None
    # Probe lists with at least four times k rows.
    probes = max(record.probes, -(-4 * k * record.lists // segment.record.living))
    if 2 * probes >= record.lists:
        return None
    scores, rows = _nearest(segment, segment.index, queries, k, probes)
    is_complete = rows.min(initial=0) >= 0 and bool(np.isfinite(scores).all())
    return (scores, rows) if is_complete else None


def _nearest(segment: Segment, index: Any, queries: Floats, k: int, probes: int) -> Scored:
    """Return the k best living rows in the probed lists, [Q, k], padded with −1."""
    faiss, settings = faiss_module(), {"nprobe": probes}
    if segment.dead is not None:
        bits = np.packbits(~segment.dead, bitorder="little")
        settings["sel"] = faiss.IDSelectorBitmap(bits)
    found: Scored = index.search(queries, k, params=faiss.SearchParametersIVF(**settings))
    return found


def build(folder: Path, segment: Segment) -> IndexRecord | None:
    """Build and write the index of a segment. Return None if reaching RECALL, with stored rows as
    queries, needs half of the lists or more, as exact search is then about as fast. Raises:
    DataError: faiss is not installed. StoreError."""
    faiss, vectors = faiss_module(), segment.vectors
    dim = vectors.shape[1]
    lists = max(1, min(round(2 * len(vectors) ** 0.5), len(vectors) // TRAINING))
    rows = np.sort(np.random.default_rng(0).permutation(len(vectors))[: lists * TRAINING])
    centres = faiss.Kmeans(dim, lists, niter=10, seed=0, min_points_per_centroid=1)
    centres.train(vectors[rows])
    # Rows are assigned to the nearest centre (L2), even if their lengths differ; queries probe the
    # lists whose centres have the largest inner products.
    near, inner = faiss.IndexFlatL2(dim), faiss.IndexFlatIP(dim)
    near.add(centres.centroids)
    inner.add(centres.centroids)
    index = faiss.IndexIVFFlat(inner, dim, lists, faiss.METRIC_INNER_PRODUCT)
    for start in range(0, len(vectors), MOST_ROWS):
        block = np.ascontiguousarray(vectors[start : start + MOST_ROWS])
        # swig_ptr does not keep arrays alive, so hold both in variables.
        _, centre_numbers = near.search(block, 1)
        index.add_core(len(block), faiss.swig_ptr(block), None, faiss.swig_ptr(centre_numbers))
    probes = _enough_probes(index, segment, lists)
    if probes is None:
        return None
    path = folder / "new"
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        sentence = " ".join(str(error).split())
        raise StoreError(f"An index cannot be written to {folder}: {sentence}") from error
    return IndexRecord(named_by_digest(path, "faiss"), lists, probes)


def _enough_probes(index: Any, segment: Segment, lists: int) -> int | None:
    """Return the number of lists to probe for RECALL; None if it is half of them or more."""
    sample = np.random.default_rng(1).permutation(segment.living())[:SAMPLE]
    queries = segment.vectors[sample]
    compared = scored_rows(segment, queries, NEAREST, segment.living())
    truth = [set(rows.tolist()) for rows in best_rows(len(queries), NEAREST, compared)]
    total, probes = sum(map(len, truth)), 1
    while 2 * probes < lists:
        found = _nearest(segment, index, queries, NEAREST, probes)[1].tolist()
        hits = sum(len(true.intersection(rows)) for true, rows in zip(truth, found, strict=True))
        if hits >= RECALL * total:
            return probes
        probes *= 2
    return None
