"""The settings of `prepare`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from evergram.data.reading.interaction_source import check_roles
from evergram.data.reading.rules import BadRowsChoice
from evergram.data.reading.source_files import Paths
from evergram.errors import DataError

# The engine's share of memory where none is named: a quarter of the machine's, at most this.
MOST_MEMORY = 2 << 30
LEAST_MEMORY = 128 << 20
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*$", re.IGNORECASE)


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
        kind: of the source: "table" for tables, or a kind of a recipe's data, such as mediawiki,
            whose loader reads it; of mediawiki, amazon and adjacency_list the interactions are
            streamed, other loaders hold their corpus in memory.
        prefix: of a dump's files, where the kind is mediawiki.
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
    prefix: str | None = None

    def __post_init__(self) -> None:
        check_roles(self.columns)
        if self.bad_rows not in get_args(BadRowsChoice):
            raise DataError(f"bad_rows is {self.bad_rows!r}; it is 'refuse' or 'drop'.")
        if self.k_core < 0:
            raise DataError(f"k_core (--k-core) is {self.k_core}; it is at least 0.")
        if self.minimum_value is not None and math.isnan(self.minimum_value):
            raise DataError("minimum_value (--minimum-value) is NaN; give a number.")
        if self.threads is not None and self.threads < 1:
            raise DataError(f"threads (--threads) is {self.threads}; it is at least 1.")
        if self.name is not None and (self.name in ("", ".", "..") or set(self.name) & set("/\\")):
            raise DataError(f"name (--name) is {self.name!r}; it is no path: leave out / and \\.")
        _ = self.memory_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes that the engine may hold. Raises: DataError: `memory` is no size, or too small."""
        if self.memory is None:
            return max(LEAST_MEMORY, min(MOST_MEMORY, machine_memory() // 4))
        size = self.memory if isinstance(self.memory, int) else bytes_of(self.memory)
        if size < LEAST_MEMORY:
            raise DataError(
                f"memory (--memory) is {self.memory}; the engine needs at least "
                f"{LEAST_MEMORY >> 20}MiB."
            )
        return size

    @property
    def thread_count(self) -> int:
        if self.threads is not None:
            return self.threads
        mine = getattr(os, "sched_getaffinity", None)  # Linux: of this process or container
        return (os.cpu_count() or 1) if mine is None else len(mine(0))


def bytes_of(text: str) -> int:
    """Return the bytes of a size such as "2GiB" or "500 MB".

    Raises: DataError: the text is no size.
    """
    match = _SIZE.match(text)
    if match is None:
        raise DataError(f"{text!r} is no size of memory; write one such as 2GiB or 500MiB.")
    power = " kmgt".index(match[2].lower() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


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
