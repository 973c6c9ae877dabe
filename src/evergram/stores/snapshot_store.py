"""The default store: immutable files in a folder, mapped into memory.

Rows are read by id from mapped memory, which is what a service does most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from evergram.errors import DataError
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.rows import (
    ID_TYPES,
    Checks,
    Floats,
    Places,
    Rows,
    Space,
    best_first,
    keys_of,
    row_checks,
)
from evergram.stores.snapshot_files import (
    BLOCK,
    NAME,
    Generation,
    Segment,
    SegmentRecord,
    SnapshotFolder,
)
from evergram.stores.snapshot_search import (
    INDEXED_FROM,
    best_rows,
    build,
    products,
    scored_rows,
)
from evergram.stores.store import Store, StoreView, other_id_type, too_few

T = TypeVar("T")

# Rows that an index of codes is built from: exact search of fewer needs little memory.
CODED_FROM = 10_000
# This many segments of about one size become one of the next: a row is rewritten log_8 N times,
# and there are at most 7 segments of each size.
FANOUT = 8


class SnapshotStore(Store):
    """A folder with `store.json` and the segments that it lists. One process writes at a time, any
    number read, and each of their calls sees what was acknowledged before it.

    A version that was loaded is one segment. Rows that are written later, as by a backfill, are
    small segments beside it, which are merged, and rows that they replace are marked as gone.

    A file is compared with its SHA-256 when it is opened, a row with its checksum when it is
    fetched or found by a search. One kind of damage goes unnoticed until the store is opened again:
    bytes damaged while a file is open can keep a row out of a search's results.

    Args:
        index_from: rows that an index is built from.
        wait: seconds to wait for another process that is writing.
    """

    kind: ClassVar[str] = "snapshot"

    # The generation that a view reads; None where each call reads the newest.
    _moment: Generation | None = None

    def __init__(self, path: Path, *, index_from: int = INDEXED_FROM, wait: float = 10.0) -> None:
        self._folder = SnapshotFolder(path, wait)
        self._index_from = index_from
        self._id_type = ID_TYPES[self._folder.record.id_type]

    @classmethod
    def open(cls, address: str, create: str | None = None) -> SnapshotStore:
        """See `open_store`. Raises: IntegrityError: a file of it is not what was written."""
        path = Path(address.removeprefix("snapshot:"))
        if not (path / NAME).exists():
            if create is None:
                raise DataError(f"There is no store at {path}; give the folder of one, or fill it.")
            SnapshotFolder(path, 10.0).create(create)
        store = cls(path)
        if create is not None and store.id_type != ID_TYPES[create]:
            raise other_id_type(str(path), store.id_type, create)
        return store

    @property
    def address(self) -> str:
        return self._folder.address

    @property
    def place(self) -> str:
        return f"snapshot:{self._folder.path.resolve()}"

    @property
    def id_type(self) -> pa.DataType:
        return self._id_type

    @property
    def side(self) -> str | None:
        return self._current().record.side

    def spaces(self) -> dict[int, Space]:
        return {space.version: space for space in self._current().record.spaces}

    def count(self) -> dict[int, int]:
        held = self._current().record
        counts = {space.version: 0 for space in held.spaces}
        for segment in held.segments:
            counts[segment.version] += segment.living
        return {version: count for version, count in counts.items() if count}

    def read_consistently(self, work: Callable[[StoreView], T]) -> T:
        view = copy(self)
        # A generation never changes, and its files stay mapped though others remove them.
        view._moment = self._current()
        return work(view)

    def close(self) -> None:
        """Close the files; a later call opens them again."""
        self._folder.close()

    def load(self, space: Space, blocks: Iterable[Rows]) -> int:
        """Write all rows of a version into one segment and return their number.

        The rows are acknowledged together at the end; killed before that, none of them is there.

        Raises: as `upsert`; DataError: rows of another version.
        """
        self.add_space(space)
        total = 0

        def checked() -> Iterator[tuple[Rows, Checks]]:
            nonlocal total
            for block in blocks:
                if block.version != space.version:
                    raise DataError(
                        f"Rows of version {block.version} cannot be loaded as version "
                        f"{space.version}; load each version by itself."
                    )
                rows = self.checked(block)
                total += len(rows)
                if len(rows):
                    yield rows, row_checks(rows)

        with self._folder.writing():
            for record in self._folder.write(space.version, checked()):
                segment = self._folder.opened(record)
                others = self._folder.without(segment.ids, segment.keys)
                self._folder.commit(segments=(*others, record))
                self._tidy()
        return total

    def build_index(self, codes: IndexCodes = FLOAT32) -> list[int]:
        """Index by faiss each version that has enough rows in no index of such codes, these rows as
        one segment: `index_from`, or CODED_FROM for fewer bytes. Rows written later are searched
        exactly beside the index. An index of other codes is removed where none is built.

        Raises: DataError: an index is needed, and faiss is not installed; codes find too few.
        """
        reasons: dict[int, str] = {}
        least = max(1, self._index_from if codes.whole else min(self._index_from, CODED_FROM))
        with self._folder.writing():
            for version in self.spaces():
                segments = [
                    one
                    for one in self._folder.current().of(version)
                    if not one.record.has_index(codes)
                ]
                count = sum(one.record.living for one in segments)
                index = None
                if count < least:
                    reasons[version] = too_few(count, least)
                else:
                    if len(segments) > 1 or segments[0].dead is not None:
                        segments = [self._merged(segments)]
                    built = build(self._folder.segments, segments[0], codes)
                    if isinstance(built, str):
                        reasons[version] = built
                    else:
                        index = built
                changed = [replace(one.record, index=index) for one in segments]
                if changed != [one.record for one in segments]:
                    self._replace(segments, changed)
        held = self._current().record
        indexed = sorted({one.version for one in held.segments if one.has_index(codes)})
        counts = self.count()
        self.unindexed = {v: reasons[v] for v in reasons if v in counts and v not in indexed}
        return indexed

    def _current(self) -> Generation:
        return self._folder.current() if self._moment is None else self._moment

    def _add_space(self, space: Space) -> None:
        with self._folder.writing():
            there = self._folder.record.spaces
            if space.version not in [other.version for other in there]:
                spaces = sorted([*there, space], key=lambda other: other.version)
                self._folder.commit(spaces=tuple(spaces))

    def _set_side(self, side: str) -> None:
        with self._folder.writing():
            if self._folder.record.side is None:
                self._folder.commit(side=side)

    def _write(self, rows: Rows, checks: Checks) -> None:
        with self._folder.writing():
            written = self._folder.write(rows.version, [(rows, checks)])
            others = self._folder.without(rows.ids, keys_of(rows.ids))
            self._folder.commit(segments=(*others, *written))
            self._tidy()

    def _delete(self, ids: pa.Array) -> None:
        with self._folder.writing():
            ids = ids.unique()
            left = tuple(self._folder.without(ids, keys_of(ids)))
            if left != self._folder.record.segments:
                self._folder.commit(segments=left)
                self._tidy()

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        keys, blocks = keys_of(ids), []
        for segment in self._current().segments:
            which, rows = segment.find(ids, keys)
            if len(rows):
                # The checksum tells where a row is another id's.
                mine = ids if len(which) == len(ids) else ids.take(pa.array(which))
                blocks.append(segment.take(rows, mine))
        return blocks

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        for segment in self._current().of(version):
            yield from segment.blocks(size)

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        if not len(queries):
            return []
        segments = self._current().of(version)
        asked = None if ids is None else (ids, keys_of(ids))
        # Rows are numbered through all segments.
        starts = np.cumsum([0, *(one.record.rows for one in segments)])

        def scored() -> Iterator[tuple[Floats, Places]]:
            for segment, start in zip(segments, starts, strict=False):
                among = None if asked is None else segment.find(*asked)[1]
                for scores, rows in scored_rows(segment, queries, k, among):
                    yield scores, rows + start

        best = best_rows(len(queries), k, scored())
        return [
            self._proved(segments, starts, rows, query)
            for rows, query in zip(best, queries, strict=True)
        ]

    def _proved(
        self, segments: list[Segment], starts: Places, rows: Places, query: Floats
    ) -> tuple[pa.Array, Floats]:
        """Return the ids of rows, best first, and their scores, which are made from copies of the
        rows that were compared with their checksums."""
        ids, scores = [pa.array([], self.id_type)], [np.zeros(0, np.float32)]
        of_segment = np.searchsorted(starts, rows, "right") - 1
        for number in np.unique(of_segment):
            copied, checks = segments[number].take(rows[of_segment == number] - starts[number])
            self._verify(copied, checks)
            ids.append(copied.ids)
            scores.append(products(query[None], copied.vectors)[0])
        return best_first(pa.concat_arrays(ids), np.concatenate(scores))

    # Few segments.

    def _tidy(self) -> None:
        """Merge segments until there are few. Where there is no room, a later write merges them:
        the rows are acknowledged already."""
        with suppress(OSError):
            while segments := _next_merge(self._folder.current()):
                self._merged(segments)

    def _merged(self, segments: list[Segment]) -> Segment:
        """Merge segments of one version into one and return it."""

        def proved() -> Iterator[tuple[Rows, Checks]]:
            for segment in segments:
                for rows, checks in segment.blocks(BLOCK):
                    # A damaged row must not get a new hash.
                    self._verify(rows, checks)
                    yield rows, checks

        written = self._folder.write(segments[0].record.version, proved())
        self._replace(segments, written)
        return self._folder.current().segments[-1]

    def _replace(self, segments: list[Segment], records: list[SegmentRecord]) -> None:
        removed = [one.record for one in segments]
        others = [one for one in self._folder.record.segments if one not in removed]
        self._folder.commit(segments=(*others, *records))


def _next_merge(generation: Generation) -> list[Segment]:
    """Return segments of one version to merge into one; none if there are few enough."""
    alike: dict[tuple[int, int], list[Segment]] = {}
    for segment in generation.segments:
        record = segment.record
        # Half of it is gone: rewriting halves what searches compare and what the disk holds.
        if 2 * record.living < record.rows:
            return [segment]
        size = (record.rows.bit_length() - 1) // 3  # ⌊log_8 rows⌋
        same = alike.setdefault((record.version, size), [])
        same.append(segment)
        if len(same) == FANOUT:
            return same
    return []
