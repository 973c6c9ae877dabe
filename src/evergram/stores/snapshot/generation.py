"""A generation: the segments of a snapshot at one moment, and which of their rows are living."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from evergram.stores.index_codes import IndexCodes
from evergram.stores.rows import Checks, Rows, Space
from evergram.stores.snapshot.segment import (
    IndexRecord,
    Mask,
    Places,
    Segment,
    SegmentRecord,
    Wanted,
)

# So many segments of about one size become one of the next: a row is rewritten log_8 N times, and
# there are at most 7 segments of each size.
FANOUT = 8


@dataclass(frozen=True)
class SnapshotRecord:
    """What `store.json` says. Segments are ascending by number, none of which is used twice.

    Args:
        side: of its rows; None until it is set.
    """

    id_type: str
    generation: int
    next_number: int
    spaces: tuple[Space, ...]
    segments: tuple[SegmentRecord, ...]
    side: str | None = None


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
    def version(self) -> int | None:
        """The version of its rows; None where these are deleted ids."""
        return self.record.version

    @cached_property
    def count(self) -> int:
        """The number of living rows."""
        return len(self.segment) - (0 if self.dead is None else int(self.dead.sum()))

    @property
    def index(self) -> IndexRecord | None:
        return self.record.index

    def has_index(self, codes: IndexCodes) -> bool:
        return self.index is not None and self.index.index_codes == codes

    def find(self, ids: Wanted) -> tuple[Places, Places]:
        """Return which of the ids have a living row here, and the rows."""
        which, rows = self.segment.find(ids)
        if self.dead is None:
            return which, rows
        living = ~self.dead[rows]
        return which[living], rows[living]

    def rows(self) -> Places:
        """Return the living rows."""
        if self.dead is None:
            return np.arange(len(self.segment))
        return np.flatnonzero(~self.dead)

    def blocks(self, size: int) -> Iterator[tuple[Rows, Checks]]:
        """Yield copies of all living rows, with the checksums that they were written with."""
        rows = self.rows()
        for start in range(0, len(rows), size):
            yield self.segment.take(rows[start : start + size])

    def before(self, newer: Segment) -> Part:
        """Return the part as it is once a newer segment is there: rows that it has too are dead."""
        if self.version is None:
            return self
        rows = self.segment.rows_in(newer)
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
        return [part for part in self.parts if part.version == version]

    def data(self) -> list[Part]:
        """Return the parts that hold rows, not deleted ids."""
        return [part for part in self.parts if part.version is not None]

    def count(self) -> dict[int, int]:
        """Return the number of living rows by version."""
        versions = sorted({part.version for part in self.parts if part.version is not None})
        counts = {version: sum(part.count for part in self.of(version)) for version in versions}
        return {version: count for version, count in counts.items() if count}

    def held(self, ids: pa.Array) -> tuple[Mask, Mask]:
        """Return which ids [n] are in a file at all, and which of them have a living row."""
        wanted = Wanted(ids)
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
        the others."""
        known = {(p.record.number, p.record.sha256): p for p in self.parts}
        parts: list[Part] = []
        for one in record.segments:
            part = known.get((one.number, one.sha256))
            if part is None:
                segment = load(one)
                parts = [older.before(segment) for older in parts]
                part = Part(segment, segment.superseded())
            elif part.record != one:
                part = replace(part, segment=part.segment.recorded(one))
            parts.append(part)
        return Generation(record, parts)

    def without_empty(self) -> Generation:
        """Return the generation without segments that have no living row, and without deleted ids
        that no older segment can have."""
        parts: list[Part] = []
        for part in self.parts:
            if part.count if part.version is not None else parts:
                parts.append(part)
        segments = tuple(part.record for part in parts)
        return Generation(replace(self.record, segments=segments), parts)

    def next_merge(self) -> list[Part]:
        """Return segments of one version, or of deleted ids, to merge into one; none if there are
        few enough."""
        alike: dict[tuple[int | None, int], list[Part]] = {}
        for part in self.parts:
            # Half of it is dead: rewriting halves what searches compare and what the disk holds.
            if part.version is not None and 2 * part.count < len(part.segment):
                return [part]
            size = (len(part.segment).bit_length() - 1) // 3  # ⌊log_8 rows⌋
            same = alike.setdefault((part.version, size), [])
            same.append(part)
            if len(same) == FANOUT:
                return same
        return []
