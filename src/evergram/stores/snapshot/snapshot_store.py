"""The default store: immutable Arrow files in a folder, mapped into memory.

docs/snapshot-engine.md says why it has an engine of its own.
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
from evergram.stores.rows import ID_TYPES, Checks, Floats, Rows, Space, row_checks
from evergram.stores.snapshot.faiss_index import INDEXED_FROM, build
from evergram.stores.snapshot.generation import (
    Best,
    Generation,
    Part,
    products,
    search_all,
    search_rows,
)
from evergram.stores.snapshot.segment import SegmentRecord, Wanted
from evergram.stores.snapshot.snapshot_folder import NAME, SnapshotFolder
from evergram.stores.store import Store, StoreView, other_id_type, too_few

T = TypeVar("T")

# Rows that an index of codes is built from: exact search of fewer needs little memory.
CODED_FROM = 10_000
# Rows that are copied at once while segments are merged.
BLOCK = 16_384


class SnapshotStore(Store):
    """A folder with `store.json` and the segments that it lists. One process writes at a time, any
    number read, and each of their calls sees what was acknowledged before it.

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
        self._id_type = ID_TYPES[self._folder.current().record.id_type]

    @classmethod
    def open(cls, address: str, create: str | None = None) -> SnapshotStore:
        """Open the snapshot in a folder.

        Args:
            create: make it where it is not there, for ids of this type, "int64" or "string".
        Raises: DataError: it is not there, or has ids of another type. StoreError: it cannot be
            read or made. IntegrityError: a file of it is not what was written.
        """
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
        return self._current().count()

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
        with self._folder.writing():
            self.add_space(space)
            with self._folder.writer(space.version) as writer:
                for block in blocks:
                    if block.version != space.version:
                        raise DataError(
                            f"Rows of version {block.version} cannot be loaded as version "
                            f"{space.version}; load each version by itself."
                        )
                    rows = self.checked(block)
                    if len(rows):
                        writer.add(rows, row_checks(rows))
                if not writer.rows:
                    writer.abandon()
                    return 0
                written = writer.finish()
            self._folder.commit(written)
            self._tidy()
        return writer.rows

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
                plain = [p for p in self._folder.current().of(version) if not p.has_index(codes)]
                count = sum(part.count for part in plain)
                if count < least:
                    self._remove_indexes(plain)
                    if count:
                        reasons[version] = too_few(count, least)
                    continue
                if len(plain) > 1 or plain[0].dead is not None:
                    self._merge(plain)
                    plain = [self._folder.current().parts[-1]]
                index = build(self._folder.segments, plain[0], codes)
                if isinstance(index, str):
                    self._remove_indexes(plain)
                    reasons[version] = index
                else:
                    before = plain[0].record
                    self._folder.commit(replace(before, index=index), [before])
        current = self._current().data()
        indexed = {p.version for p in current if p.version is not None and p.has_index(codes)}
        self.unindexed = {v: why for v, why in reasons.items() if v not in indexed}
        return sorted(indexed)

    def _current(self) -> Generation:
        return self._folder.current() if self._moment is None else self._moment

    def _add_space(self, space: Space) -> None:
        with self._folder.writing():
            there = self._folder.current().record.spaces
            if space.version not in [other.version for other in there]:
                spaces = sorted([*there, space], key=lambda other: other.version)
                self._folder.commit(spaces=tuple(spaces))

    def _set_side(self, side: str) -> None:
        with self._folder.writing():
            if self._folder.current().record.side is None:
                self._folder.commit(side=side)

    def _write(self, rows: Rows, checks: Checks) -> None:
        with self._folder.writing():
            self._folder.commit(self._written(rows.version, [(rows, checks)]))
            self._tidy()

    def _delete(self, ids: pa.Array) -> None:
        with self._folder.writing():
            ids = ids.unique()
            living = ids.filter(pa.array(self._folder.current().held(ids)[1]))
            if len(living):
                self._folder.commit(self._written(None, [_deleted(living)]))
                self._tidy()

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        wanted = Wanted(ids)
        blocks = []
        for part in self._current().data():
            which, rows = part.find(wanted)
            if len(rows):
                # The checksum tells where a row is another id's.
                mine = ids if len(which) == len(ids) else ids.take(pa.array(which))
                blocks.append(part.segment.take(rows, mine))
        return _by_version(blocks)

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        for part in self._folder.current().of(version):
            yield from part.blocks(size)

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        parts = self._current().of(version)
        indexes = self._folder.indexes
        best = Best(len(queries), k)
        wanted = None if ids is None else Wanted(ids)
        for number, part in enumerate(parts):
            index = indexes.get(part.record.number)
            if not len(queries) or not part.count:
                continue
            if wanted is not None:
                search_rows(best, number, part, queries, part.find(wanted)[1])
            elif index is None or not index.offer(best, number, part, queries, k):
                search_all(best, number, part, queries)
        return [self._proved(parts, best.rows(i), query) for i, query in enumerate(queries)]

    def _proved(
        self, parts: list[Part], places: np.ndarray, query: Floats
    ) -> tuple[pa.Array, Floats]:
        """Return the ids at places (segment, row) [n, 2], best first, and their scores, which are
        made from copies of the rows that were compared with their checksums."""
        if not len(places):
            return pa.array([], self.id_type), np.zeros(0, np.float32)
        ids, scores = [], []
        for number in np.unique(places[:, 0]):
            rows, checks = parts[number].segment.take(places[places[:, 0] == number, 1])
            self._verify(rows, checks)
            ids.append(rows.ids)
            scores.append(products(query[None], rows.vectors)[0])
        joined = np.concatenate(scores)
        order = np.argsort(-joined, kind="stable")
        return pa.concat_arrays(ids).take(pa.array(order)), joined[order]

    def _remove_indexes(self, parts: list[Part]) -> None:
        for part in parts:
            if part.index is not None:
                self._folder.commit(replace(part.record, index=None), [part.record])

    # Few segments.

    def _tidy(self) -> None:
        """Merge segments until there are few. Where there is no room, a later write merges them:
        the rows are acknowledged already."""
        with suppress(OSError):
            while parts := self._folder.current().next_merge():
                self._merge(parts)

    def _merge(self, parts: list[Part]) -> None:
        removed = [part.record for part in parts]
        if removed[0].version is None:
            # Ids stay listed of which a file still has a row, and no row is living.
            ids = pa.concat_arrays([part.segment.all_ids for part in parts]).unique()
            there, living = self._folder.current().held(ids)
            left = ids.filter(pa.array(there & ~living))
            written = self._written(None, [_deleted(left)]) if len(left) else None
        else:
            written = self._written(removed[0].version, self._proved_blocks(parts))
        self._folder.commit(written, removed)

    def _proved_blocks(self, parts: list[Part]) -> Iterator[tuple[Rows, Checks]]:
        for part in parts:
            for rows, checks in part.blocks(BLOCK):
                # A damaged row must not get a new hash.
                self._verify(rows, checks)
                yield rows, checks

    def _written(self, version: int | None, blocks: Iterable[tuple[Rows, Checks]]) -> SegmentRecord:
        with self._folder.writer(version) as writer:
            for rows, checks in blocks:
                writer.add(rows, checks)
            return writer.finish()


def _deleted(ids: pa.Array) -> tuple[Rows, Checks]:
    return Rows(-1, ids, np.zeros((len(ids), 0), np.float32)), np.zeros(len(ids), np.uint32)


def _by_version(blocks: list[tuple[Rows, Checks]]) -> list[tuple[Rows, Checks]]:
    """Return the rows of several segments, those of a version one after the other."""
    if len(blocks) < 2:
        return blocks
    groups = []
    for version in dict.fromkeys(rows.version for rows, _ in blocks):
        mine, checks = zip(*(one for one in blocks if one[0].version == version), strict=True)
        ids = pa.concat_arrays([rows.ids for rows in mine])
        vectors = np.concatenate([rows.vectors for rows in mine])
        groups.append((Rows(version, ids, vectors), np.concatenate(checks)))
    return groups
