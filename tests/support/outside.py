"""A folder of somebody's own, which nothing of a lineage may read, change or remove."""

from __future__ import annotations

from pathlib import Path

SECRET = b"what was there before"


def outside_folder(parent: Path) -> Path:
    """A new folder with one file, "own", that holds `SECRET`."""
    folder = parent / "outside"
    folder.mkdir()
    (folder / "own").write_bytes(SECRET)
    return folder
