"""Vectors in a folder of Parquet files, as engines read and write them, that a killed run goes on
with.

    part-00000-of-00008.parquet …   whole or not there
    _SHARDS.json                    what the shards are of, and which are finished; written first
    _SUCCESS                        written last: all of them are there
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evergram.collectives import ALONE, Collectives
from evergram.errors import DataError
from evergram.vector_files.base import Block
from evergram.vector_files.parquet import write_embeddings
from evergram.vector_files.shard_record import Settings, ShardRecord

MOST = 100_000
# A run writes the record at most so many times, as it is as long as there are shards.
RECORDINGS = 1_000


@dataclass(frozen=True)
class Shards:
    """A folder of shards.

    >>> from pathlib import Path
    >>> from evergram.vector_files.shards import Shards
    >>> shards = Shards(Path("as_v0"), 8)
    >>> shards.path(3).name, shards.rows(3, 100)
    ('part-00003-of-00008.parquet', range(37, 50))

    Args:
        folder: made if it is not there.
        count: shards, 1 to 100,000.
        only: the one shard to write, from 0, so that several processes can share the work; None
            writes all.
        together: processes that each write a share of the shards: consecutive ones, so that each
            reads its part of the rows in one pass.
    Raises: DataError: a number is out of range.
    """

    folder: Path
    count: int
    only: int | None = None
    together: Collectives = ALONE

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST:
            raise DataError(f"{self.count} shards were asked for; 1 to {MOST} are allowed.")
        if self.only is not None and not 0 <= self.only < self.count:
            raise DataError(
                f"Shard {self.only} was asked for; {self.count} shards are numbered 0 to "
                f"{self.count - 1}."
            )

    @classmethod
    def parsed(
        cls, folder: Path, count: int | None, only: str | None, together: Collectives = ALONE
    ) -> Shards | None:
        """Return the shards that `--shards N` or `--shard I/N` name; None if neither was given.

        Raises: DataError: `only` is not of the form I/N, or names another N than `count`; or
            several processes were started, and they were not given shards to share.
        """
        if together.size > 1 and (count is None or only is not None):
            raise DataError(
                f"{together.size} processes share the shards of one folder; give them by --shards "
                "N, without --shard, or start one process without torchrun."
            )
        if only is None:
            return None if count is None else cls(folder, count, together=together)
        match = re.fullmatch(r"(\d+)/(\d+)", only)
        if match is None or (count is not None and int(match[2]) != count):
            of = "N" if count is None else str(count)
            raise DataError(
                f"--shard {only} is no shard; write I/{of}, with I from 0, as in --shard 3/8."
            )
        return cls(folder, int(match[2]), int(match[1]))

    def path(self, shard: int) -> Path:
        """Return the file of a shard."""
        return self.folder / f"part-{shard:05d}-of-{self.count:05d}.parquet"

    def rows(self, shard: int, total: int) -> range:
        """Return the rows of `total` that a shard has; shards differ by at most one row."""
        return range(shard * total // self.count, (shard + 1) * total // self.count)

    @property
    def numbers(self) -> range:
        """The shards that this process writes."""
        if self.only is not None:
            return range(self.only, self.only + 1)
        return range(self.count)[self.together.share(self.count)]


@dataclass(frozen=True)
class WrittenShards:
    """The outcome of a run.

    Args:
        rows: of all shards.
        written, kept: shards that this run wrote, and those that were there already.
        missing: shards that are not there yet; with none, the set is whole and `_SUCCESS` is there.

    Of several processes, all have the outcome of all.
    """

    rows: int
    written: list[int]
    kept: list[int]
    missing: list[int]


def write_shards(
    shards: Shards,
    total: int,
    read: Callable[[int, int], Iterable[Block]],
    provenance: Mapping[str, str],
    settings: Settings,
    *,
    overwrite: bool = False,
) -> WrittenShards:
    """Write the shards that are not there yet; one after the other, each whole or not at all.

    The size and SHA-256 of each are recorded, and a shard that is there already is compared with
    them: one that differs is written again, and a warning says so.

    Args:
        total: rows of all shards.
        read: returns the blocks of the rows from a first to before a last one.
        provenance: of each file, see `provenance_of`.
        settings: what the rows are of; those that began the folder must be the same.
        overwrite: True writes all of `shards.numbers` anew, and removes those of other settings.
    Raises: DataError: the folder has shards of other settings, or other files, or cannot be
        written; or there are fewer rows than shards.
    """
    if total < shards.count:
        raise DataError(
            f"{total} rows cannot fill {shards.count} shards; ask for at most {total} by --shards."
        )
    record = ShardRecord(shards.folder, {"shards": shards.count, "rows": total, **settings})
    together = shards.together
    by_first(lambda: record.begin(overwrite=overwrite), together)
    there = set() if overwrite else set(record.verified(map(shards.path, shards.numbers)))
    kept = [n for n in shards.numbers if shards.path(n) in there]
    missing = [n for n in shards.numbers if shards.path(n) not in there]
    record.forget(map(shards.path, missing))
    unrecorded: list[Path] = []
    try:
        for path in _written(shards, total, missing, read, provenance):
            unrecorded.append(path)
            if len(unrecorded) * RECORDINGS >= shards.count:
                record.add(unrecorded)
                unrecorded.clear()
    finally:
        record.add(unrecorded)
    # All processes are done with theirs when they have exchanged what they did.
    done = torch.zeros(2, shards.count, dtype=torch.int64)
    done[0, missing] = done[1, kept] = 1
    made, there_already = (row.nonzero().flatten().tolist() for row in together.sum(done, "shards"))
    numbers = {shards.path(n): n for n in range(shards.count)}
    absent = by_first(lambda: [numbers[path] for path in record.absent(numbers)], together)
    return WrittenShards(total, made, there_already, absent)


def by_first(make: Callable[[], Any], together: Collectives) -> Any:
    """Return what `make` returns in the first process, as JSON; it is not called in others.

    Raises: DataError: the first process's `make` raised it; all raise it alike.
    """
    failures: list[DataError] = []

    def attempt() -> dict[str, Any]:
        try:
            return {"value": make()}
        except DataError as error:
            failures.append(error)
            return {"error": str(error)}

    answer: dict[str, Any] = together.from_first(attempt)
    if failures:
        raise failures[0]
    if "error" in answer:
        raise DataError(answer["error"])
    return answer["value"]


def _written(
    shards: Shards,
    total: int,
    missing: list[int],
    read: Callable[[int, int], Iterable[Block]],
    provenance: Mapping[str, str],
) -> Iterator[Path]:
    """Write the missing shards; yield the file of each when it is in its place."""
    for first, last in _runs(missing):
        start, stop = shards.rows(first, total).start, shards.rows(last, total).stop
        cut = _Cut(read(start, stop))
        for n in range(first, last + 1):
            rows = len(shards.rows(n, total))
            written = write_embeddings(shards.path(n), cut.take(rows), provenance)
            if written != rows:
                shards.path(n).unlink()
                raise DataError(
                    f"{shards.path(n)} got {written} rows in place of {rows}: what it is written "
                    "from changed meanwhile; start again."
                )
            yield shards.path(n)


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of consecutive numbers, so that what they are read
    from is read once."""
    for place, first in enumerate(numbers):
        if place and numbers[place - 1] == first - 1:
            continue
        last = place
        while last + 1 < len(numbers) and numbers[last + 1] == numbers[last] + 1:
            last += 1
        yield first, numbers[last]


class _Cut:
    """Blocks, cut into pieces of as many rows as are asked for."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._blocks = iter(blocks)
        self._rest: Block | None = None

    def take(self, rows: int) -> Iterator[Block]:
        """Yield blocks of so many rows together; fewer where the blocks end."""
        while rows:
            block = self._rest if self._rest is not None else next(self._blocks, None)
            self._rest = None
            if block is None:
                return
            ids, vectors = block
            if len(ids) > rows:
                self._rest = ids.slice(rows), vectors[rows:]
                ids, vectors = ids.slice(0, rows), vectors[:rows]
            rows -= len(ids)
            if len(ids):
                yield ids, vectors


def between(blocks: Iterable[Block], start: int, stop: int) -> Iterator[Block]:
    """Yield the rows from `start` to before `stop` of blocks that begin at row 0."""
    first = 0
    for ids, vectors in blocks:
        if first >= stop:
            return
        low, high = max(start - first, 0), min(stop - first, len(ids))
        first += len(ids)
        if low < high:
            yield ids.slice(low, high - low), vectors[low:high]
