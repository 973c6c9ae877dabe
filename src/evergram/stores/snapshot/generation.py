"""A generation: the segments of a snapshot at one moment, and which of their rows are living."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from evergram.stores.index_codes import IndexCodes
from evergram.stores.snapshot.segment import Mask, Places, Segment, Wanted
from evergram.stores.snapshot.snapshot_record import SegmentRecord, SnapshotRecord
from evergram.stores.store import Checks, Rows


@dataclass(frozen=True)
class Part:
    """A segment of a generation.

    Args:
        dead: bool [n], rows that were written again elsewhere or deleted; None where there are
            none.
    """

    segment: Segment
    dead: Mask | None

    @property
    def record(self) -> SegmentRecord:
        return self.segment.record

    @property
    def version(self) -> int:
        """The version of its rows; −1 where these are deleted ids."""
        return -1 if self.record.version is None else self.record.version

    @cached_property
    def count(self) -> int:
        """The number of living rows."""
        return len(self.segment) - (0 if self.dead is None else int(self.dead.sum()))

    def has_index(self, codes: IndexCodes) -> bool:
        """Return whether it has an index of such codes."""
        return self.record.index is not None and self.record.index.index_codes == codes

    def find(self, ids: Wanted) -> tuple[Places, Places]:
        """Return which of the ids have a living row here, and the rows."""
        which, rows = self.segment.find(ids)
        if self.dead is None:
            return which, rows
        living = ~self.dead[rows]
        return which[living], rows[living]

    def take(self, rows: Places, ids: pa.Array | None = None) -> tuple[Rows, Checks]:
        """Return copies of rows, with the checksums that they were written with.

        Args:
            ids: the ids that the rows were found by, to save reading the segment's own: the
                checksum tells where a row is another id's.
        """
        segment = self.segment
        ids = segment.ids(rows) if ids is None else ids
        return Rows(self.version, ids, segment.vectors(rows)), segment.checks(rows)

    def rows(self) -> Places:
        """Return the places of the living rows."""
        if self.dead is None:
            return np.arange(len(self.segment))
        return np.flatnonzero(~self.dead)

    def blocks(self, size: int) -> Iterator[tuple[Rows, Checks]]:
        """Yield copies of all living rows, with the checksums that they were written with."""
        rows = self.rows()
        for start in range(0, len(rows), size):
            yield self.take(rows[start : start + size])

    def without(self, rows: Places) -> Part:
        """Return the part with these rows dead."""
        if not len(rows):
            return self
        dead = np.zeros(len(self.segment), dtype=bool) if self.dead is None else self.dead.copy()
        dead[rows] = True
        return Part(self.segment, dead)


@dataclass(frozen=True)
class Generation:
    """A snapshot at one moment; immutable, so that threads read one while the next is written."""

    record: SnapshotRecord
    parts: Sequence[Part]

    def of(self, version: int) -> list[Part]:
        """Return the parts with rows of a version."""
        return [part for part in self.parts if part.record.version == version]

    def data(self) -> list[Part]:
        """Return the parts that hold rows, not deleted ids."""
        return [part for part in self.parts if part.record.version is not None]

    def count(self) -> dict[int, int]:
        """Return the number of living rows by version."""
        counts: dict[int, int] = {}
        for part in self.data():
            if part.count:
                counts[part.version] = counts.get(part.version, 0) + part.count
        return dict(sorted(counts.items()))

    def living(self, ids: pa.Array) -> pa.Array:
        """Return those of the ids that have a living row."""
        return ids.filter(pa.array(self._held(ids)[1]))

    def still_deleted(self, parts: Sequence[Part]) -> pa.Array:
        """Return the deleted ids of some parts that must stay listed: a file still has a row of
        them, and none of it is living."""
        held = [batch.ids for part in parts for batch in part.segment.batches]
        ids = pa.concat_arrays(held).unique()
        there, living = self._held(ids)
        return ids.filter(pa.array(there & ~living))

    def _held(self, ids: pa.Array) -> tuple[Mask, Mask]:
        """Return which ids [n] are in a file at all, and which of them have a living row."""
        wanted = Wanted.of(ids)
        there, living = np.zeros(len(ids), dtype=bool), np.zeros(len(ids), dtype=bool)
        for part in self.data():
            which, rows = part.segment.find(wanted)
            there[which] = True
            living[which if part.dead is None else which[~part.dead[rows]]] = True
        return there, living

    def advanced(
        self, record: SnapshotRecord, load: Callable[[SegmentRecord], Segment]
    ) -> Generation:
        """Return a later generation. Dead rows stay dead, so only new segments are compared with
        the others, the smaller of two looked up in the larger."""
        known = {(p.record.number, p.record.data.sha256): p for p in self.parts}
        parts: list[Part] = []
        for one in record.segments:
            part = known.get((one.number, one.data.sha256))
            if part is None:
                segment = load(one)
                part = Part(segment, segment.superseded())
                parts = [older.without(_older(older.segment, segment)) for older in parts]
            elif part.record != one:
                part = replace(part, segment=part.segment.recorded(one))
            parts.append(part)
        return Generation(record, parts)

    def without_empty(self) -> Generation:
        """Return the generation without segments that have no living row."""
        parts = [p for p in self.parts if p.record.version is None or p.count]
        segments = tuple(part.record for part in parts)
        return Generation(replace(self.record, segments=segments), parts)


def _older(old: Segment, new: Segment) -> Places:
    """Return the rows of an older segment whose ids a newer one has too."""
    if old.record.version is None:
        return np.zeros(0, np.int64)
    if len(new) <= len(old):
        return old.find(new)[1]
    which, _ = new.find(old)
    return old.rows_at(which)


def joined(parts: list[tuple[Rows, Checks]]) -> tuple[Rows, Checks]:
    """Return rows of several segments of a version, one after the other."""
    if len(parts) == 1:
        return parts[0]
    rows = [mine for mine, _ in parts]
    ids = pa.concat_arrays([mine.ids for mine in rows])
    vectors = np.concatenate([mine.vectors for mine in rows])
    return Rows(rows[0].version, ids, vectors), np.concatenate([checks for _, checks in parts])
