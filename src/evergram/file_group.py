"""Replace a file and those beside it that belong to it, so that none is read with another's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from evergram.atomic_files import displaced, part_of, sync


@contextmanager
def replacing_group(main: Path, *beside: Path) -> Iterator[dict[Path, Path]]:
    """Yield a path to write to for each file; what is there when the block ends without an error
    replaces the files together.

    All of it is synced before the first file is replaced, and the main file is the first that goes
    and the last that comes: a process that is killed at any moment leaves the old files, the new
    ones, or no main file, and then the old one as `displaced(main)`. An error leaves the old files.

    Args:
        beside: a file is removed if nothing was written for it, and stays as it is if the block
            takes it out of the dictionary.
    """
    parts = {path: part_of(path) for path in (main, *beside)}
    every = list(parts.values())
    for part in every:
        part.unlink(missing_ok=True)
    try:
        yield parts
        for part in parts.values():
            if part.exists():
                sync(part)
        changed = {p: part for p, part in parts.items() if part.exists() or p.exists()}
        if list(changed) == [main]:
            changed[main].replace(main)
        else:
            _exchange(main, changed)
        sync(main.parent)
    finally:
        for part in every:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _exchange(main: Path, parts: dict[Path, Path]) -> None:
    """Put each part, if there is one, in the place of a file; the main file is the first."""
    old = {path: displaced(path) for path in parts}
    moved: list[Path] = []
    for place in old.values():  # of a killed process
        place.unlink(missing_ok=True)
    try:
        for path in parts:
            with suppress(FileNotFoundError):
                path.replace(old[path])
            moved.append(path)
            if path == main:
                sync(main.parent)
        for path in reversed(parts):
            if path == main:
                sync(main.parent)
            with suppress(FileNotFoundError):
                parts[path].replace(path)
    except BaseException:
        # The main file comes back only after all others have.
        with suppress(OSError):
            for path in reversed(moved):
                old[path].replace(path) if old[path].exists() else path.unlink(missing_ok=True)
        raise
    for place in old.values():
        with suppress(OSError):
            place.unlink(missing_ok=True)
