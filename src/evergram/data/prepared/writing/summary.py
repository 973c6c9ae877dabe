"""`PrepareSummary`: what a run of `prepare` read, left out and wrote."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from evergram.data.rolling_window import date_text


@dataclass(frozen=True)
class PrepareSummary:
    """A run of `prepare`.

    Args:
        out: the prepared folder.
        fingerprint: of its content.
        rows_read: rows of the sources.
        bad_rows: by "count" how many rows could not be used, and by "reasons" why.
        below_minimum: rows left out for their value.
        repeats_dropped: rows left out as a pair's first interaction stands before them.
        outside_core: rows left out by k_core.
        added: interactions of the new part.
        interactions: of all parts.
        parts: their number.
        entities: by side, ids of all parts.
        new_entities: by side, ids that the new part brought.
        columns: of the interactions, and the types of them on disk.
        unread: the sources' other columns.
        first_time, last_time: of the new part; None without times.
        size: bytes of the prepared folder.
        seconds: of the run.
        peak_memory: bytes, the most that this process had in memory at once since it began.
    """

    out: str
    fingerprint: str
    rows_read: int
    bad_rows: dict[str, Any]
    below_minimum: int
    repeats_dropped: int
    outside_core: int
    added: int
    interactions: int
    parts: int
    entities: dict[str, int]
    new_entities: dict[str, int]
    columns: dict[str, str]
    unread: list[str]
    first_time: int | float | None
    last_time: int | float | None
    size: int
    seconds: float
    peak_memory: int

    def to_json(self) -> dict[str, Any]:
        """Return all of it by name, for `--json`."""
        return asdict(self)

    def __str__(self) -> str:
        """Return it in lines for people."""
        left_out = {
            "bad rows": self.bad_rows["count"],
            "below the minimum value": self.below_minimum,
            "repeats": self.repeats_dropped,
            "outside the core": self.outside_core,
        }
        dropped = "".join(f", {count:,} {why}" for why, count in left_out.items() if count)
        part = f" (part {self.parts}; {self.interactions:,} in all)" if self.parts > 1 else ""
        queries, candidates = self.entities["query"], self.entities["candidate"]
        lines = [
            f"{self.out}: {self.added:,} interactions{part} of {queries:,} queries with "
            f"{candidates:,} candidates.",
            f"Read {self.rows_read:,} rows{dropped and '; left out' + dropped[1:]}.",
        ]
        lines += [f"Bad: {reason}." for reason in self.bad_rows["reasons"]]
        if self.parts > 1:
            lines.append(
                f"New: {self.new_entities['query']:,} queries, "
                f"{self.new_entities['candidate']:,} candidates."
            )
        if self.first_time is None or self.last_time is None:
            lines.append("There are no times.")
        else:
            lines.append(f"Times from {date_text(self.first_time)} to {date_text(self.last_time)}.")
        if self.unread:
            roles = [role for role in ("time", "value", "weight") if role not in self.columns]
            reads = " or ".join(f"--column {role}=NAME" for role in roles)
            unread = ", ".join(self.unread)
            lines.append(f"Not read: {unread}{reads and f'; {reads} reads one'}.")
        lines.append(
            f"{self.size / 1e6:,.1f} MB on disk; {self.seconds:.1f} s, "
            f"{self.rows_read / max(self.seconds, 1e-9):,.0f} rows/s, at most "
            f"{self.peak_memory / (1 << 20):,.0f} MiB of memory."
        )
        return "\n".join(lines)
