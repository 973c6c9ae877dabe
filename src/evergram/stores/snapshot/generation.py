"""What is in a snapshot at one moment: its segments, and which of their rows count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from evergram.stores.snapshot.segment import Mask, Places, Segment, Wanted
from evergram.stores.snapshot.snapshot_record import SegmentRecord, SnapshotRecord
from evergram.stores.store import Checks, Rows


@dataclass(frozen=True)
class Part:
    """A segment of a generation.

    Args:
        dead: rows [n] that were written again elsewhere, or deleted; None: there are none.
    """

    segment: Segment
    dead: Mask | None

    @property
    def record(self) -> SegmentRecord:
        return self.segment.record

    @property
    def version(self) -> int:
        """−1 of deleted ids."""
        return -1 if self.record.version is None else self.record.version

    @cached_property
    def count(self) -> int:
        """Rows that count."""
        return len(self.segment) - (0 if self.dead is None else int(self.dead.sum()))

    def find(self, ids: Wanted) -> tuple[Places, Places]:
        """Which of the ids have a row here that counts, and the rows."""
        which, rows = self.segment.find(ids)
        if self.dead is None:
            return which, rows
        living = ~self.dead[rows]
        return which[living], rows[living]

    def take(self, rows: Places, ids: pa.Array | None = None) -> tuple[Rows, Checks]:
        """Rows, copied, with the checksums that they were written with.

        Args:
            ids: that they were found by. The checksum tells whether a row is another's, so the
                segment's own need not be read.
        """
        segment = self.segment
        ids = segment.ids(rows) if ids is None else ids
        return Rows(self.version, ids, segment.vectors(rows)), segment.checks(rows)

    def rows(self) -> Places:
        if self.dead is None:
            return np.arange(len(self.segment))
        return np.flatnonzero(~self.dead)

    def blocks(self, size: int) -> Iterator[tuple[Rows, Checks]]:
        """All rows that count, copied, with the checksums that they were written with."""
        rows = self.rows()
        for start in range(0, len(rows), size):
            yield self.take(rows[start : start + size])

    def without(self, rows: Places) -> Part:
        if not len(rows):
            return self
        dead = np.zeros(len(self.segment), dtype=bool) if self.dead is None else self.dead.copy()
        dead[rows] = True
        return Part(self.segment, dead)


@dataclass(frozen=True)
class Generation:
    """Never changed once made, so that threads may read one while the next is written."""

    record: SnapshotRecord
    parts: Sequence[Part]

    def of(self, version: int) -> list[Part]:
        return [part for part in self.parts if part.record.version == version]

    def data(self) -> list[Part]:
        return [part for part in self.parts if part.record.version is not None]

    def count(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for part in self.data():
            if part.count:
                found[part.version] = found.get(part.version, 0) + part.count
        return dict(sorted(found.items()))

    def living(self, ids: pa.Array) -> pa.Array:
        """Those of the ids that have a row."""
        return ids.filter(pa.array(self._held(ids)[1]))

    def still_deleted(self, parts: Sequence[Part]) -> pa.Array:
        """The ids of parts that are deleted ones, but for those that no file holds any more, and
        those that came back."""
        held = [batch.ids for part in parts for batch in part.segment.batches]
        ids = pa.concat_arrays(held).unique()
        there, living = self._held(ids)
        return ids.filter(pa.array(there & ~living))

    def _held(self, ids: pa.Array) -> tuple[Mask, Mask]:
        """Which ids [n] are in a file at all, and which of them have a row that counts."""
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
        """A later generation. Rows that are dead stay dead, so that only segments that are new
        are compared with the others, the smaller of two looked up in the larger."""
        known = {(p.record.number, p.record.data.sha256): p for p in self.parts}
        parts: list[Part] = []
        for found in record.segments:
            there = known.get((found.number, found.data.sha256))
            fresh = there is None
            if there is None:
                segment = load(found)
                there = Part(segment, segment.superseded())
            elif there.record != found:
                there = replace(there, segment=there.segment.recorded(found))
            if fresh:
                parts = [part.without(_older(part.segment, there.segment)) for part in parts]
            parts.append(there)
        return Generation(record, parts)

    def without_empty(self) -> Generation:
        """Without segments of which no row counts."""
        parts = [p for p in self.parts if p.record.version is None or p.count]
        segments = tuple(part.record for part in parts)
        return Generation(replace(self.record, segments=segments), parts)


def _older(old: Segment, new: Segment) -> Places:
    """Rows of an older segment whose ids a newer one has too."""
    if old.record.version is None:
        return np.zeros(0, np.int64)
    if len(new) <= len(old):
        return old.find(new)[1]
    which, _ = new.find(old)
    return old.rows_at(which)
