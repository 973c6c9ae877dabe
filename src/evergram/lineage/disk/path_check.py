"""Refuse what leads out of a lineage's folder: symbolic links that somebody has laid in it."""

from __future__ import annotations

from pathlib import Path

from evergram.errors import IntegrityError

# What a lineage's own code reads and writes in its folder.
PARTS = (
    "lineage.json",
    "consumers.json",
    "versions",
    "embeddings",
    "probes",
    "stores",
    "backfills",
    ".work",
    ".lock",
)


def check_inside(root: Path, *paths: Path) -> None:
    """Refuse a path that symbolic links lead out of `root`, whether or not anything is there.

    Raises: IntegrityError: one does.
    """
    home = _real(root)
    for path in paths:
        real = _real(path)
        if home is None or real is None or not real.is_relative_to(home):
            where = "in a circle" if real is None else f"to {real}, outside of the lineage's folder"
            raise IntegrityError(
                f"{path} leads {where}, by a symbolic link; nothing is read or written there: put "
                "the files themselves in its place."
            )


def check_parts(root: Path) -> None:
    """Refuse a lineage of which a part is a symbolic link that leads out of its folder.

    Raises: IntegrityError: one is.
    """
    check_inside(root, *(path for name in PARTS if (path := root / name).is_symlink()))


def check_tree(root: Path, folder: Path) -> None:
    """Refuse a folder of a lineage that holds, at any depth, a link that leads out of it.

    Raises: IntegrityError: it does.
    """
    check_inside(root, folder)
    check_inside(root, *(path for path in folder.rglob("*") if path.is_symlink()))


def _real(path: Path) -> Path | None:
    """Where a path leads in the end; None where its links go in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return None
