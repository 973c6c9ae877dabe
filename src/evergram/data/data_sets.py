"""The folder of data sets: `$EVERGRAM_DATA` at the start of a path in a recipe stands for the value
of that variable, or for a folder `data/` where the process runs."""

from __future__ import annotations

import os
from pathlib import Path

from evergram.errors import DataError

VARIABLE = "EVERGRAM_DATA"
PREFIX = f"${VARIABLE}/"


def whole_path(text: str, folder: Path) -> Path:
    """Return the absolute path that a recipe in `folder` names, see `PREFIX`."""
    if text.startswith(PREFIX):
        folder, text = Path(os.environ.get(VARIABLE) or "data"), text.removeprefix(PREFIX)
    return (folder / text).resolve()


def existing(path: str | Path) -> Path:
    """Return a path. Raises: DataError: it does not exist."""
    path = Path(path)
    if not path.exists():
        raise DataError(
            f"There is no file or folder {path}; correct the path. docs/data-sets.md has the "
            f"commands that fetch public data sets, for the folder that {VARIABLE} names."
        )
    return path
