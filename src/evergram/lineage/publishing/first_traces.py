"""A first publication that fails leaves nothing where it would have made a lineage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK, RECORD = ".lock", "lineage.json"


def not_there_yet(path: Path) -> list[Path]:
    """Return those of a lineage's lock and folders that a publication would make, inner first."""
    parts = (path / LOCK, path / "versions", path / "embeddings", path, *path.parents)
    return [part for part in parts if not part.exists()]


@contextmanager
def removed_on_failure(made: Sequence[Path]) -> Iterator[None]:
    """Remove a lock and empty folders if the block raises; the lock is held until it ends.

    Args:
        made: as of `not_there_yet`.
    """
    try:
        yield
    except BaseException:
        for part in made:
            # Another process may have been quicker, and the lock is then its lineage's.
            if part.name == LOCK and part.with_name(RECORD).exists():
                break
            with suppress(OSError):
                part.unlink() if part.name == LOCK else part.rmdir()
        raise
