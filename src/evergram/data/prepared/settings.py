"""`PrepareSettings` and `PrepareSummary`: what `prepare` is told, and what it did."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import ByteSize, TypeAdapter, ValidationError

from evergram.data.reading.interaction_source import check_roles
from evergram.data.reading.rules import BadRowsChoice
from evergram.data.reading.source_files import Paths
from evergram.data.rolling_window import date_text
from evergram.errors import DataError

# The engine's share of memory where none is named: a quarter of the machine's, at most this.
MOST_MEMORY = 2 << 30
LEAST_MEMORY = 128 << 20


@dataclass(frozen=True)
class PrepareSettings:
    """Which columns a corpus is prepared from, what is left out, and what the engine may use.

    Args:
        columns: the files' own names of the columns query, candidate, value, time and weight,
            {"query": "user_id"}; and of the ids in files of features, {"candidate_id": "sku"}.
        weights: by name of an event its weight, {"view": 1, "cart": 3}, where the column of weights
            holds such names.
        query_features, candidate_features: files with a column `id` and one column a feature.
        shared_ids: query and candidate ids name the same things.
        unique: keep of each pair its first interaction in time; without times, in the sources'
            order.
        k_core: keep the largest part of the interactions in which each query and each candidate
            has at least k of them; 0 keeps all. Applied last.
        minimum_value: leave out interactions of a smaller value. Applied first.
        bad_rows: "drop" leaves out rows without an id, or with a value, weight or time that is no
            number or date, and says so; "refuse" raises an error that counts them.
        memory: bytes that the engine may hold, or a text such as "2GiB"; None takes a quarter of
            the machine's memory, at most 2 GiB.
        threads: of the engine; None takes one for each core.
        name: of the corpus, no path; None takes that of the folder.
        kind: "table", or another kind of a recipe's data, whose loader reads the source; of an
            adjacency_list interactions are streamed, other loaders hold their corpus in memory.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    query_features: Paths | None = None
    candidate_features: Paths | None = None
    shared_ids: bool = False
    unique: bool = False
    k_core: int = 0
    minimum_value: float | None = None
    bad_rows: BadRowsChoice = "refuse"
    memory: int | str | None = None
    threads: int | None = None
    name: str | None = None
    kind: str = "table"

    def __post_init__(self) -> None:
        check_roles(self.columns)
        if self.bad_rows not in get_args(BadRowsChoice):
            raise DataError(f"bad_rows is {self.bad_rows!r}; it is 'refuse' or 'drop'.")
        for name, least in (("k_core", 0), ("threads", 1), ("minimum_value", -math.inf)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise DataError(f"{name} is {value}; it must be a number ≥ {least}.")
        if self.name is not None and (self.name in ("", ".", "..") or set(self.name) & set("/\\")):
            raise DataError(f"name (--name) is {self.name!r}; it is no path: leave out / and \\.")
        _ = self.memory_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes that the engine may hold. Raises: DataError: `memory` is no size, or too small."""
        if self.memory is None:
            return max(LEAST_MEMORY, min(MOST_MEMORY, machine_memory() // 4))
        size = 0
        with suppress(ValidationError):
            size = int(TypeAdapter(ByteSize).validate_python(self.memory))
        if size < LEAST_MEMORY:
            raise DataError(
                f"memory (--memory) is {self.memory}; write a size such as 2GiB or 500MiB, of at "
                f"least {LEAST_MEMORY >> 20}MiB, which the engine needs."
            )
        return size

    @property
    def thread_count(self) -> int:
        if self.threads is not None:
            return self.threads
        mine = getattr(os, "sched_getaffinity", None)  # Linux: of this process or container
        return (os.cpu_count() or 1) if mine is None else len(mine(0))


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or its container's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total


@dataclass(frozen=True)
class PrepareSummary:
    """What a run of `prepare` read, left out and wrote; docs/commands.md explains each value."""

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
            *(f"Bad: {reason}." for reason in self.bad_rows["reasons"]),
        ]
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
            f"{self.rows_read / max(self.seconds, 1e-9):,.0f} rows/s."
        )
        return "\n".join(lines)
