"""The default store: immutable files in a folder, mapped into memory.

Rows are read by id from mapped memory, which is what a service does most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.rows import (
    ID_TYPES,
    Checks,
    Floats,
    Places,
    Rows,
    Space,
    best_first,
    keys_of,
    products,
    row_checks,
)
from evergram.stores.snapshot_files import (
    BLOCK,
    NAME,
    Generation,
    IndexRecord,
    Segment,
    SegmentRecord,
    SnapshotFolder,
    faiss_module,
    named_by_digest,
    read_segment,
)
from evergram.stores.store import ReadableStore, Store

T = TypeVar("T")

# Rows that an index is built from: exact search of fewer is fast.
INDEXED_FROM = 200_000
# This many segments of about one size become one of the next: a row is rewritten log_8 N times,
# and there are at most 7 segments of each size.
FANOUT = 8
# Scores computed at once: few enough to stay in the processor's cache until the best are picked.
SCORES = 1 << 19
LEAST_ROWS, MOST_ROWS = 1024, 1 << 16
RECALL, NEAREST, SAMPLE = 0.95, 10, 200
# Rows that centres are found with, for each list; faiss asks for 39 at least.
TRAINING = 40
# Scores [Q, b], and the rows [b] of a segment, or those of each query [Q, b].
Scored = tuple[Floats, Places]


class SnapshotStore(Store):
    """A folder with `store.json` and the segments that it lists. One process writes at a time, any
    number read, and each of their calls sees what was acknowledged before it.

    A version that was loaded is one segment. Rows that are written later, as by a backfill, are
    small segments beside it, which are merged, and rows that they replace are marked as gone.

    A file is compared with its SHA-256 when it is opened, a row with its checksum when it is
    fetched or found by a search. One kind of damage goes unnoticed until the store is opened again:
    bytes damaged while a file is open can keep a row out of a search's results.
    """

    kind: ClassVar[str] = "snapshot"

    # The generation that a view reads; None where each call reads the newest.
    _moment: Generation | None = None

    def __init__(self, path: Path) -> None:
        self._folder = SnapshotFolder(path)
        self.address = self._folder.address
        self.id_type = ID_TYPES[self._folder.record.id_type]

    @classmethod
    def open(cls, address: str, create: str | None = None) -> SnapshotStore:
        """See `open_store`. Raises: IntegrityError: a file of it is not what was written."""
        path = Path(address.removeprefix("snapshot:"))
        if not (path / NAME).exists():
            if create is None:
                raise DataError(f"There is no store at {path}; give the folder of one, or fill it.")
            SnapshotFolder(path).create(create)
        return cls(path)

    @property
    def place(self) -> str:
        return f"snapshot:{self._folder.path.resolve()}"

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

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
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
                segment = read_segment(self._folder.segments, record)
                others = self._folder.without(segment.ids, segment.keys)
                self._folder.commit(segments=(*others, record))
                self._tidy()
        return total

    def build_index(self) -> list[int]:
        """Index by faiss each version with at least INDEXED_FROM rows that are in no index, as one
        segment, unless comparing all rows is as fast. Rows written later are searched exactly
        beside the index.

        Raises: DataError: an index is needed, and faiss is not installed.
        """
        with self._folder.writing():
            for version in self.spaces():
                segments = self._folder.current().of(version)
                segments = [one for one in segments if one.record.index is None]
                if sum(one.record.living for one in segments) < INDEXED_FROM:
                    continue
                if len(segments) > 1 or segments[0].dead is not None:
                    segments = [self._merged(segments)]
                index = build(self._folder.segments, segments[0])
                if index is not None:
                    self._replace(segments, [replace(segments[0].record, index=index)])
        held = self._current().record
        return sorted({one.version for one in held.segments if one.index is not None})

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


# Searches in a segment: of all its rows, or by a faiss index (IVF), whose lists a query is compared
# with a few of.


def best_rows(queries: int, k: int, scored: Iterable[Scored]) -> list[Places]:
    """Return for each query the rows [≤k] with the largest scores above −∞, in any order."""
    best = [(np.zeros(0, np.float32), np.zeros(0, np.int64))] * queries
    # The k-th best, which a row must exceed; −∞ until there are k.
    limits = np.full(queries, -np.inf, dtype=np.float32)
    for scores, rows in scored:
        for i in np.flatnonzero(scores.max(axis=1, initial=-np.inf) > limits):
            chosen = np.flatnonzero(scores[i] > limits[i])
            chosen = chosen[_largest(scores[i, chosen], k)]
            mine = (rows if rows.ndim == 1 else rows[i])[chosen]
            joined = np.concatenate([best[i][0], scores[i, chosen]])
            kept = _largest(joined, k)
            best[i] = joined[kept], np.concatenate([best[i][1], mine])[kept]
            if len(kept) == k:
                limits[i] = best[i][0].min()
    return [rows for _, rows in best]


def _largest(scores: Floats, k: int) -> Places:
    if len(scores) <= k:
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - k)[-k:]


def scored_rows(segment: Segment, queries: Floats, k: int, rows: Places | None) -> Iterator[Scored]:
    """Yield living rows, or `rows` alone, with their scores; the k best are among them."""
    if rows is None and segment.index is not None:
        found = _by_index(segment, queries, min(k, segment.record.living))
        if found is not None:
            yield found
            return
    count = segment.record.rows if rows is None else len(rows)
    size = min(MOST_ROWS, max(LEAST_ROWS, SCORES // len(queries)))
    for start in range(0, count, size):
        part = slice(start, min(start + size, count))
        block = np.arange(part.start, part.stop) if rows is None else rows[part]
        scores = products(queries, segment.vectors[part if rows is None else block])
        if rows is None and segment.dead is not None:
            scores[:, segment.dead[part]] = -np.inf
        yield scores, block


def _by_index(segment: Segment, queries: Floats, k: int) -> Scored | None:
    """Return the k nearest living rows of each query; None if half of the lists would be compared,
    which takes as long as all rows, or a sum of faiss is past float32, which may hide that its end
    is not."""
    record = segment.record.index
    assert record is not None
    # Lists with four times as many rows as are looked for.
    probes = max(record.probes, -(-4 * k * record.lists // segment.record.living))
    if 2 * probes >= record.lists:
        return None
    scores, rows = _nearest(segment, segment.index, queries, k, probes)
    whole = rows.min(initial=0) >= 0 and bool(np.isfinite(scores).all())
    return (scores, rows) if whole else None


def _nearest(segment: Segment, index: Any, queries: Floats, k: int, probes: int) -> Scored:
    """Return the k living rows [Q, k] with the largest scores in the nearest lists; −1 where these
    have fewer rows.

    Raises: IntegrityError: the index is damaged.
    """
    faiss, settings = faiss_module(), {"nprobe": probes}
    if segment.dead is not None:
        bits = np.packbits(~segment.dead, bitorder="little")
        settings["sel"] = faiss.IDSelectorBitmap(bits)
    scores, rows = index.search(queries, k, params=faiss.SearchParametersIVF(**settings))
    if rows.max(initial=0) >= segment.record.rows:
        raise IntegrityError(
            "An index of a snapshot is not what was written; restore the store from a copy, or "
            "fill it again."
        )
    return scores, rows


def build(folder: Path, segment: Segment) -> IndexRecord | None:
    """Index a segment, and write the index; return None if the recall of stored rows as queries
    takes half of the lists or more: comparing all rows is then about as fast. Raises: DataError: no
    faiss. StoreError."""
    faiss, vectors = faiss_module(), segment.vectors
    dim = vectors.shape[1]
    lists = max(1, min(round(2 * len(vectors) ** 0.5), len(vectors) // TRAINING))
    rows = np.sort(np.random.default_rng(0).permutation(len(vectors))[: lists * TRAINING])
    centres = faiss.Kmeans(dim, lists, niter=10, seed=0, min_points_per_centroid=1)
    centres.train(vectors[rows])
    # A row is in the list of its nearest centre, also where lengths differ; a query looks into
    # the lists with the largest inner products.
    near, inner = faiss.IndexFlatL2(dim), faiss.IndexFlatIP(dim)
    near.add(centres.centroids)
    inner.add(centres.centroids)
    index = faiss.IndexIVFFlat(inner, dim, lists, faiss.METRIC_INNER_PRODUCT)
    for start in range(0, len(vectors), MOST_ROWS):
        block = np.ascontiguousarray(vectors[start : start + MOST_ROWS])
        # Both arrays must live until faiss has read them.
        _, places = near.search(block, 1)
        index.add_core(len(block), faiss.swig_ptr(block), None, faiss.swig_ptr(places))
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
    """Return the number of lists that give the recall; None if it is half of them or more."""
    sample = np.random.default_rng(1).permutation(segment.living())[:SAMPLE]
    queries = segment.vectors[sample]
    compared = scored_rows(segment, queries, NEAREST, segment.living())
    truth = [set(rows.tolist()) for rows in best_rows(len(queries), NEAREST, compared)]
    wanted, probes = sum(map(len, truth)), 1
    while 2 * probes < lists:
        found = _nearest(segment, index, queries, NEAREST, probes)[1].tolist()
        if sum(len(one.intersection(f)) for one, f in zip(truth, found, strict=True)) >= (
            RECALL * wanted
        ):
            return probes
        probes *= 2
    return None
