"""Vectors in a folder of Parquet files, as engines read and write them, that a killed run goes on
with.

    part-00000-of-00008.parquet …   whole or not there
    _SHARDS.json                    what the shards are of, and which are finished; written first
    _SUCCESS                        written last: all of them are there
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from evergram.atomic_files import replacing, sync
from evergram.collectives import ALONE, Collectives
from evergram.errors import DataError, reason_and_remedy
from evergram.vector_files.open_embeddings import Block
from evergram.vector_files.writers import write_embeddings

RECORD, SUCCESS = "_SHARDS.json", "_SUCCESS"
# The key of the record that has the finished shards.
FINISHED = "finished"
# A shard of any set, or one that is being written.
_SHARD = re.compile(r"\.?part-\d{5}-of-(\d{5})\.parquet(\.part)?")
# A run's settings: what must be the same for its shards to belong together.
Settings = Mapping[str, str | int]
log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardRecord:
    """The record of a folder whose shards are of these settings.

    Several processes may add to it: each reads it, adds its shards and replaces it while it holds
    the folder's lock. On a file system without locks an addition may be lost; then that shard is
    written again, and no shard is ever taken for another.

    Args:
        folder: of the shards.
        settings: `shards`, their number, and what else must be the same.
        place: what to change, for the error on shards of other settings.
    """

    folder: Path
    settings: Settings
    place: str = "folder"

    def begin(self, *, overwrite: bool) -> None:
        """Make the folder and its record, or compare the record that is there; `overwrite` removes
        the shards of other settings."""
        with self._locked():
            self._begin(overwrite)

    def verified(self, paths: Iterable[Path]) -> list[Path]:
        """Return those of the shards that are there as they were written; read each whole, and log
        a sentence on each that differs."""
        finished, whole = self._finished(), []
        for path in filter(Path.is_file, paths):
            entry = finished.get(path.name)
            if entry is None:
                log.warning("%s is not among the finished shards; it is written again.", path)
            elif entry != _digest(path):
                log.warning(
                    "%s has another SHA-256 than when it was written; it is written again.", path
                )
            else:
                whole.append(path)
        return whole

    def add(self, paths: Iterable[Path]) -> None:
        """Record shards that are written: their size and SHA-256."""
        new = {path.name: _digest(path) for path in paths}
        if new:
            with self._locked():
                self._replace({**self._finished(), **new})

    def forget(self, paths: Iterable[Path]) -> None:
        """Take shards that are to be written out of the record, and the mark of a whole set."""
        names = {path.name for path in paths}
        with self._locked():
            finished = self._finished()
            if names:
                (self.folder / SUCCESS).unlink(missing_ok=True)
            if names & finished.keys():
                self._replace({n: entry for n, entry in finished.items() if n not in names})

    def absent(self, paths: Iterable[Path]) -> list[Path]:
        """Return the shards that are not recorded, or not there in the size that is; with none,
        mark the set as whole."""
        with self._locked():
            sizes = {name: entry.get("bytes") for name, entry in self._finished().items()}
            absent = [p for p in paths if not p.is_file() or sizes.get(p.name) != p.stat().st_size]
            if not absent:
                _write(self.folder / SUCCESS, b"")
        return absent

    def _begin(self, overwrite: bool) -> None:
        names = {path.name for path in self.folder.iterdir()}
        began = self._read()[0] if RECORD in names else None
        count = began and began.get("shards")
        if others := sorted(name for name in names if not _belongs(name, count)):
            raise DataError(
                f"{self.folder} has other files in it, such as {others[0]}; give a new folder for "
                "shards, or move them out of it."
            )
        if began == self.settings:
            return
        if began is not None:
            if not overwrite:
                raise self._other_settings(began)
            # Without this mark nobody takes what is left for a whole set.
            (self.folder / SUCCESS).unlink(missing_ok=True)
            for name in filter(_SHARD.fullmatch, names):
                (self.folder / name).unlink(missing_ok=True)
        self._replace({})

    def _finished(self) -> dict[str, Any]:
        settings, finished = self._read()
        if settings != self.settings:
            raise DataError(
                f"{self.folder} was begun again with other settings by another process; start this "
                "one again, in a folder of its own."
            )
        return finished

    def _replace(self, finished: Mapping[str, Any]) -> None:
        record = {"settings": self.settings, FINISHED: dict(sorted(finished.items()))}
        _write(self.folder / RECORD, json.dumps(record, indent=2).encode() + b"\n")

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the settings and the finished shards."""
        path = self.folder / RECORD
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return dict(record["settings"]), {n: dict(e) for n, e in record[FINISHED].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{path} cannot be read: {error}; give another folder.") from error

    def _other_settings(self, began: Settings) -> DataError:
        now = self.settings
        changed = sorted(k for k in {*began, *now} if began.get(k) != now.get(k))
        what = ", ".join(f"{k} was {began.get(k)}, is {now.get(k)}" for k in changed)
        return DataError(
            f"{self.folder} has shards of other settings ({what}); give another {self.place}, or "
            "--force (in Python overwrite=True), which removes them and starts again."
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise DataError(
                f"{self.folder} cannot be written to: {reason_and_remedy(error)}."
            ) from error
        try:
            # Some file systems lock no folders; see the class.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _belongs(name: str, count: object) -> bool:
    """Return whether a folder of this many shards, or a new one (None), may have such a file."""
    if name.startswith((f".{RECORD}", f".{SUCCESS}")):
        return True
    match = _SHARD.fullmatch(name)
    if match is None:
        return count is not None and name in (RECORD, SUCCESS)
    return count is not None and int(match[1]) == count


def _digest(path: Path) -> dict[str, str | int]:
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return {"bytes": os.fstat(file.fileno()).st_size, "sha256": sha256}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {reason_and_remedy(error)}.") from error


def _write(path: Path, content: bytes) -> None:
    """Write a small file that several processes may write at once."""
    try:
        with replacing(path, owner=f".{os.getpid()}") as file:
            file.write(content)
        sync(path.parent)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {reason_and_remedy(error)}.") from error


MOST = 100_000
# A run writes the record at most this many times, as it is as long as there are shards.
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
            last = self.count - 1
            raise DataError(f"Shard {self.only} was asked for; shards are numbered 0 to {last}.")

    @classmethod
    def parsed(cls, folder: Path, text: str | None, together: Collectives = ALONE) -> Shards | None:
        """Return the shards that `--shards N` or `--shards I/N` names; None if nothing is given."""
        only, _, count = (text or "").rpartition("/")
        if together.size > 1 and (text is None or only):
            raise DataError(
                f"{together.size} processes share the shards of one folder; give them by --shards "
                "N, or start one process without torchrun."
            )
        if text is None:
            return None
        if re.fullmatch(r"(\d+/)?\d+", text) is None:
            raise DataError(
                f"--shards is {text!r}; write their number N, or I/N, with I from 0, as in 3/8."
            )
        return cls(folder, int(count), int(only) if only else None, together=together)

    def path(self, shard: int) -> Path:
        return self.folder / f"part-{shard:05d}-of-{self.count:05d}.parquet"

    def rows(self, shard: int, total: int) -> range:
        """Return the rows of `total` that a shard has; shards differ by at most one row."""
        return range(shard * total // self.count, (shard + 1) * total // self.count)

    @property
    def numbers(self) -> range:
        if self.only is not None:
            return range(self.only, self.only + 1)
        return range(self.count)[self.together.share(self.count)]


@dataclass(frozen=True)
class WrittenShards:
    """The outcome of a run, in each of its processes that of all: the rows of all shards, and which
    were written, kept as they were, or are missing yet."""

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
    """Return what `make` returns in the first process, as JSON; it is not called in others, and all
    raise its DataError alike."""
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
    # Consecutive shards are written in one pass over what they are read from.
    for _, run in groupby(enumerate(missing), lambda one: one[1] - one[0]):
        numbers = [n for _, n in run]
        start, stop = (shards.rows(n, total) for n in (numbers[0], numbers[-1]))
        cut = _Cut(read(start.start, stop.stop))
        for n in numbers:
            rows = len(shards.rows(n, total))
            written = write_embeddings(shards.path(n), cut.take(rows), provenance)
            if written != rows:
                shards.path(n).unlink()
                raise DataError(
                    f"{shards.path(n)} got {written} rows in place of {rows}: what it is written "
                    "from changed meanwhile; start again."
                )
            yield shards.path(n)


class _Cut:
    """Blocks, cut into pieces of as many rows as are asked for."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._blocks = iter(blocks)
        self._rest: Block | None = None

    def take(self, rows: int) -> Iterator[Block]:
        """Yield blocks of this many rows in total; fewer where the blocks end."""
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
