"""Compaction: the choice of segments to merge, so that there are few and none is rewritten
often."""

from __future__ import annotations

from collections.abc import Sequence

from evergram.stores.snapshot.generation import Part
from evergram.stores.snapshot.segment_writer import MAX_ROWS

# So many segments of about one size become one of the next: a row is rewritten log_8 N times, and
# there are at most 7 segments of each size.
FANOUT = 8


def next_merge(parts: Sequence[Part]) -> list[Part]:
    """Return segments of one version, or of deleted ids, to merge into one; none if there are few
    enough."""
    for part in parts:
        # Half of it is dead: rewriting halves what searches look at and what the disk holds.
        if part.record.version is not None and 2 * part.count < len(part.segment):
            return [part]
    alike: dict[tuple[int | None, int], list[Part]] = {}
    for part in parts:
        if len(part.segment) < MAX_ROWS:
            same = alike.setdefault((part.record.version, _size(len(part.segment))), [])
            same.append(part)
            if len(same) == FANOUT:
                return same
    return []


def _size(rows: int) -> int:
    """Return ⌊log_8 rows⌋."""
    return (rows.bit_length() - 1) // 3
