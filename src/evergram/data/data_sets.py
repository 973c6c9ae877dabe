"""The folder of data sets: a recipe's path may start with `$EVERGRAM_DATA/`, which means the folder
in that environment variable, or `data/` in the working directory if it is not set."""

from __future__ import annotations

import os
from pathlib import Path

from evergram.errors import DataError

VARIABLE = "EVERGRAM_DATA"
PREFIX = f"${VARIABLE}/"


def whole_path(text: str, folder: Path) -> Path:
    """Return the absolute path of `text`, a path relative to `folder` or one with `PREFIX`."""
    if text.startswith(PREFIX):
        folder, text = Path(os.environ.get(VARIABLE) or "data"), text.removeprefix(PREFIX)
    return (folder / text).resolve()


def existing(path: str | Path) -> Path:
    """Return the path. Raises: DataError: it does not exist."""
    path = Path(path)
    if not path.exists():
        raise DataError(
            f"There is no file or folder {path}; correct the path. docs/data-sets.md has commands "
            f"that download public data sets into the folder {VARIABLE}."
        )
    return path
