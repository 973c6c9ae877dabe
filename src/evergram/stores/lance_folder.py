"""What a LanceDB store has beside its tables: the file that names its spaces, and the lock of who
writes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from evergram.errors import EvergramError, FormatError, StoreError
from evergram.stores.store import Space

FORMAT = 1
WAIT = 60.0  # seconds, for another process that writes


@contextmanager
def told(shown: str) -> Iterator[None]:
    """Whatever LanceDB raises as StoreError."""
    try:
        yield
    except (EvergramError, GeneratorExit):
        raise
    except BaseException as error:
        # Damaged files also make it panic, which is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        said = " ".join(str(error).split())[:200]
        raise StoreError(f"{shown} cannot be read or written: {said}.") from error


@contextmanager
def alone(folder: Path, name: str, shown: str) -> Iterator[None]:
    """No other process writes this store meanwhile; one that is killed lets go."""
    try:
        with FileLock(folder / f"{name}.lock", timeout=WAIT):
            yield
    except Timeout:
        raise StoreError(
            f"Another process has been writing {shown} for {WAIT:.0f} s; try again later."
        ) from None
    except OSError as error:
        raise StoreError(f"{shown} cannot be written: {error.strerror or error}.") from error


def meta_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def read_meta(folder: Path, name: str, shown: str) -> tuple[str, dict[int, Space]]:
    raw = json.loads(meta_file(folder, name).read_text())
    if raw["format_version"] != FORMAT:
        raise FormatError(
            f"{shown} has format {raw['format_version']}; this Evergram has {FORMAT}."
        )
    spaces = [Space(**space) for space in raw["spaces"]]
    return raw["id_type"], {space.version: space for space in spaces}


def write_meta(folder: Path, name: str, id_type: str, spaces: dict[int, Space]) -> None:
    listed = [vars(spaces[version]) for version in sorted(spaces)]
    raw = {"format_version": FORMAT, "id_type": id_type, "spaces": listed}
    part = folder / f".{name}.json.part"
    with part.open("w") as file:
        json.dump(raw, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    part.replace(meta_file(folder, name))
