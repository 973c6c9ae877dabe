"""What a folder of shards says of itself: `_SHARDS.json`, with the settings that its shards are of
and the size and SHA-256 of each finished shard, and `_SUCCESS`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergram.atomic_files import replacing, sync
from evergram.errors import DataError
from evergram.system_errors import reason_and_remedy

RECORD, SUCCESS = "_SHARDS.json", "_SUCCESS"
# The key of the record that has the finished shards; the others are settings.
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
        place: what whoever has shards of other settings can give another of.
    """

    folder: Path
    settings: Settings
    place: str = "folder"

    def begin(self, *, overwrite: bool) -> None:
        """Make the folder and its record, or compare the record that is there.

        Args:
            overwrite: True removes the shards of other settings, and starts again.
        Raises: DataError: the folder has other files, or shards of other settings, or cannot be
            written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"{self.folder} cannot be written to: {reason_and_remedy(error)}."
            ) from error
        with self._locked():
            self._begin(overwrite)

    def verified(self, paths: Iterable[Path]) -> list[Path]:
        """Return those of the shards that are there as they were written; read each whole.

        A sentence is logged on each that is there and differs.
        """
        finished, whole = self._finished(), []
        for path in paths:
            if not path.is_file():
                continue
            difference = _difference(path, finished.get(path.name))
            if difference is None:
                whole.append(path)
            else:
                log.warning("%s %s; it is written again.", path, difference)
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
            finished = self._finished()
            absent = [path for path in paths if _size(path) != _bytes_in(finished.get(path.name))]
            if not absent:
                _write(self.folder / SUCCESS, b"")
        return absent

    def _begin(self, overwrite: bool) -> None:
        names = {path.name for path in self.folder.iterdir()}
        began = _settings_of(self._read()) if RECORD in names else None
        count = None if began is None else began.get("shards")
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
            for name in names:
                if _SHARD.fullmatch(name):
                    (self.folder / name).unlink(missing_ok=True)
        self._write({**self.settings, FINISHED: {}})

    def _finished(self) -> dict[str, Any]:
        record = self._read()
        if _settings_of(record) != self.settings:
            raise DataError(
                f"{self.folder} was begun again with other settings by another process; start this "
                "one again, in a folder of its own."
            )
        finished = record.get(FINISHED)
        return finished if isinstance(finished, dict) else {}

    def _replace(self, finished: Mapping[str, Any]) -> None:
        self._write({**self.settings, FINISHED: dict(sorted(finished.items()))})

    def _read(self) -> dict[str, Any]:
        path = self.folder / RECORD
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}; give another folder.") from error
        return record if isinstance(record, dict) else {}

    def _write(self, record: Mapping[str, Any]) -> None:
        _write(self.folder / RECORD, json.dumps(record, indent=2).encode() + b"\n")

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
            descriptor = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise DataError(f"{self.folder} cannot be read: {reason_and_remedy(error)}.") from error
        try:
            # Some file systems lock no folders; see the class.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _settings_of(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != FINISHED}


def _belongs(name: str, count: object) -> bool:
    """Return whether a folder of so many shards, or a new one (None), may have such a file."""
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


def _difference(path: Path, entry: object) -> str | None:
    """Return how a shard differs from its entry in the record; None if it does not."""
    bytes_, size = _bytes_in(entry), _size(path)
    if bytes_ is None:
        return f"is not among the finished shards of {RECORD}"
    if bytes_ != size:
        return f"has {size} bytes in place of the {bytes_} that were written"
    # Any other entry than the one of these bytes is a difference, too.
    return None if _digest(path) == entry else "has another SHA-256 than when it was written"


def _bytes_in(entry: object) -> int | None:
    size = entry.get("bytes") if isinstance(entry, dict) else None
    return size if isinstance(size, int) else None


def _size(path: Path) -> int:
    """Return a file's bytes; -1 if it is not there."""
    return path.stat().st_size if path.is_file() else -1


def _write(path: Path, content: bytes) -> None:
    """Write a small file that several processes may write at once."""
    try:
        with replacing(path, owner=f".{os.getpid()}") as file:
            file.write(content)
        sync(path.parent)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {reason_and_remedy(error)}.") from error
