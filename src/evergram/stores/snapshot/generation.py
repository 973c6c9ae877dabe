"""A generation: the segments of a snapshot at one moment, and which of their rows are living."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.stores.index_codes import IndexCodes
from evergram.stores.rows import Checks, Floats, Rows, Space
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


# Scores computed at once: few enough to stay in the processor's cache until the best are picked.
SCORES = 1 << 19
LEAST_ROWS, MOST_ROWS = 1024, 1 << 16


class Best:
    """The k best rows so far of each of Q queries; a row is named by its segment and place."""

    def __init__(self, queries: int, k: int) -> None:
        self._k = k
        self._scores = [np.zeros(0, np.float32)] * queries
        self._rows: list[npt.NDArray[np.int64]] = [np.zeros((0, 2), np.int64)] * queries
        # The k-th best, which a row must exceed; −∞ until there are k.
        self._limits = np.full(queries, -np.inf, dtype=np.float32)

    def offer(self, scores: Floats, segment: int, rows: Places | int) -> None:
        """Offer rows of a segment to every query.

        Args:
            scores: [Q, b].
            rows: places [b] of the rows, or the first of b rows that lie together.
        """
        for i in np.flatnonzero(scores.max(axis=1, initial=-np.inf) > self._limits):
            places = _above(scores[i], self._limits[i], self._k)
            offered = places + rows if isinstance(rows, int) else rows[places]
            self.add(int(i), scores[i, places], segment, offered)

    def add(self, query: int, scores: Floats, segment: int, rows: Places) -> None:
        """Offer rows [b] with scores [b] to one query."""
        added = np.stack([np.full(len(rows), segment, dtype=np.int64), rows], axis=1)
        joined = np.concatenate([self._scores[query], scores])
        places = np.concatenate([self._rows[query], added])
        kept = _above(joined, np.float32(-np.inf), self._k)
        self._scores[query], self._rows[query] = joined[kept], places[kept]
        if len(kept) == self._k:
            self._limits[query] = self._scores[query].min()

    def rows(self, query: int) -> npt.NDArray[np.int64]:
        """Return segment and place of the best rows of a query, [≤k, 2], in any order."""
        return self._rows[query]


def _above(scores: Floats, limit: np.float32, k: int) -> Places:
    """Return the places of scores [n] above a limit, at most the k best, in any order."""
    above = np.flatnonzero(scores > limit) if limit > -np.inf or len(scores) <= k else None
    rest = scores if above is None else scores[above]
    if len(rest) <= k:
        return np.arange(len(rest)) if above is None else above
    best = np.argpartition(rest, len(rest) - k)[-k:]
    # A dead row has the score −∞.
    best = best[rest[best] > limit]
    return best if above is None else above[best]


def search_all(best: Best, number: int, part: Part, queries: Floats) -> None:
    """Offer all living rows of a segment."""
    size = min(MOST_ROWS, max(LEAST_ROWS, SCORES // len(queries)))
    for start in range(0, len(part.segment), size):
        scores = products(queries, part.segment.vectors[start : start + size])
        if part.dead is not None:
            scores[:, part.dead[start : start + size]] = -np.inf
        best.offer(scores, number, start)


def search_rows(best: Best, number: int, part: Part, queries: Floats, rows: Places) -> None:
    """Offer some rows of a segment."""
    size = min(MOST_ROWS, max(LEAST_ROWS, SCORES // len(queries)))
    for start in range(0, len(rows), size):
        mine = rows[start : start + size]
        best.offer(products(queries, part.segment.vectors[mine]), number, mine)


def products(queries: Floats, block: Floats) -> Floats:
    """Return inner products [Q, b], none NaN; one too large for float32 is infinite, as in every
    store."""
    with np.errstate(over="ignore", invalid="ignore"):
        if len(queries) == 1:
            scores = np.asarray((block @ queries[0])[None])
        else:
            scores = np.asarray(queries @ block.T)
        # Where a part of a sum is past float32, the sum is NaN or infinite, though it may be small.
        # A sum of squares sees that in one pass, and is past float32 itself from 1e19 on.
        if not np.isfinite(np.vdot(scores, scores)):
            rows = np.flatnonzero(~np.isfinite(scores).all(axis=0))
            for start in range(0, len(rows), LEAST_ROWS):
                some = rows[start : start + LEAST_ROWS]
                scores[:, some] = queries.astype(np.float64) @ block[some].T.astype(np.float64)
    return scores
