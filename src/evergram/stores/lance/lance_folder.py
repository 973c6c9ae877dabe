"""The files that a LanceDB store has beside its tables: its record and its write lock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import Timeout

from evergram.atomic_files import write_bytes
from evergram.errors import DataError, EvergramError, FormatError, StoreError
from evergram.file_lock import file_lock
from evergram.stores.store import ID_TYPES, Space
from evergram.system_errors import reason_and_remedy

FORMAT = 1
WAIT = 60.0  # seconds, for another process that writes


def check_local(place: str, kind: str) -> None:
    """Refuse an address that is no folder of this machine.

    Args:
        kind: of the store, such as "lance-table".
    Raises: DataError; the place is not repeated, as there may be a key in it.
    """
    scheme, colon, _ = place.partition("://")
    if colon:
        raise DataError(
            f"A store {kind}: is in a folder on a disk of this machine, and its address has "
            f"{scheme[:20]}:// in place of one; buckets and LanceDB's cloud are not read. Copy the "
            f"tables to a disk and give {kind}:DIR#…, or use PostgreSQL or Qdrant."
        )


@contextmanager
def errors_as_store_errors(shown: str) -> Iterator[None]:
    """Raise every error of LanceDB as a StoreError."""
    try:
        yield
    except (EvergramError, GeneratorExit):
        raise
    except BaseException as error:
        # Damaged files also make it panic, which is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        sentence = " ".join(str(error).split())[:200].rstrip(".")
        raise StoreError(
            f"{shown} cannot be read or written: {sentence}; see that its folder may be read and "
            "written, and restore it from a copy or fill another."
        ) from error


@contextmanager
def write_lock(folder: Path, name: str, shown: str) -> Iterator[None]:
    """Hold the lock of the one process that writes; that of a killed process is free again.

    Raises: StoreError: another process holds it for too long, or the disk cannot be written.
    """
    try:
        with file_lock(folder / f"{name}.lock", timeout=WAIT):
            yield
    except Timeout:
        raise StoreError(
            f"Another process has been writing {shown} for {WAIT:.0f} s; try again later."
        ) from None
    except OSError as error:
        raise StoreError(f"{shown} cannot be written: {reason_and_remedy(error)}.") from error


def record_file(folder: Path, name: str) -> Path:
    """Return the path of a store's record."""
    return folder / f"{name}.json"


@dataclass(frozen=True)
class LanceRecord:
    """The record of a store, NAME.json.

    Args:
        side: of the rows; None until it is set.
    """

    id_type: str
    spaces: dict[int, Space] = field(default_factory=dict)
    side: str | None = None


def read_record(folder: Path, name: str, shown: str) -> LanceRecord:
    """Return a store's record.

    Raises: FormatError: it is of a later format. StoreError: it is damaged.
    """
    file = record_file(folder, name)
    try:
        raw = json.loads(file.read_text())
        if raw["format_version"] != FORMAT:
            raise FormatError(
                f"{shown} has format {raw['format_version']}; this Evergram reads {FORMAT}: use a "
                "later Evergram."
            )
        spaces = {one["version"]: Space(**one) for one in raw["spaces"]}
        kind, side = raw["id_type"], raw["side"]
        if kind not in ID_TYPES:
            raise ValueError(f"id_type is {kind!r}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, FormatError):
            raise
        raise StoreError(
            f"{shown} cannot be read: {file} is no record of a store ({error}); restore it from a "
            "copy, or give another name."
        ) from error
    return LanceRecord(kind, spaces, side)


def write_record(folder: Path, name: str, record: LanceRecord) -> None:
    """Replace a store's record, whole or not at all."""
    listed = [vars(record.spaces[version]) for version in sorted(record.spaces)]
    raw = {
        "format_version": FORMAT,
        "id_type": record.id_type,
        "side": record.side,
        "spaces": listed,
    }
    write_bytes(record_file(folder, name), json.dumps(raw, indent=2).encode())


def refuse_others(folder: Path, name: str, shown: str) -> None:
    """Refuse a new store whose tables are there already: they are somebody's own.

    Raises: StoreError.
    """
    for path in sorted(folder.glob(f"{name}-v*.lance")):
        raise _not_ours(path.stem, shown)


def drop_left(database: Any, table: str, schema: pa.Schema, shown: str) -> None:
    """Drop a table that the record does not name: a writer that was killed left it, empty.

    Raises: StoreError: it is somebody's own.
    """
    if not (Path(database.uri) / f"{table}.lance").exists():
        return
    left = database.open_table(table)
    if left.schema.names != schema.names or left.count_rows():
        raise _not_ours(table, shown)
    database.drop_table(table)


def _not_ours(table: str, shown: str) -> StoreError:
    return StoreError(
        f"There is a table {table} that {shown} did not write; give another name after #, or "
        "rename that table."
    )
