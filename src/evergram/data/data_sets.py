"""The folder of data sets, and the public ones that recipes name; docs/data-sets.md has the terms
of each, and the command that fetches it.

`$EVERGRAM_DATA` at the start of a path in a recipe stands for the folder: the value of that
variable, or a folder `data/` where the process runs.
"""

from __future__ import annotations

import os
from pathlib import Path

from evergram.errors import DataError

VARIABLE = "EVERGRAM_DATA"
PREFIX = f"${VARIABLE}/"
# By folder of a public data set what makes Parquet tables of it in `build/`, run in Evergram's
# repository; "" where recipes read the folder itself. `reproduction` adds its own.
DATA_SETS = {
    "movielens-25m-head": "",
    "movielens-latest-small": "",
    "gowalla": "python -m benchmarks.gowalla",
    "yelp2018": "",
}


def whole_path(text: str, folder: Path) -> Path:
    """Return the absolute path that a recipe in `folder` names, see `PREFIX`."""
    if text.startswith(PREFIX):
        folder, text = Path(os.environ.get(VARIABLE) or "data"), text.removeprefix(PREFIX)
    return (folder / text).resolve()


def existing(path: str | Path) -> Path:
    """Return an existing path; for a public data set the error says how to get it."""
    path = Path(path)
    if path.exists():
        return path
    name = next((part.name for part in (path, *path.parents) if part.name in DATA_SETS), None)
    if name is None:
        raise DataError(f"There is no file or folder {path}; correct the path.")
    page = f"docs/data-sets.md, under `{name}`,"
    if DATA_SETS[name] and path.suffix == ".parquet":
        how = f"`{DATA_SETS[name]}` makes it of the data set {name} ({page} says how to get that)"
    else:
        how = f"{page} has the command that fetches this public data set, and its owner's terms; "
        how += f"or set {VARIABLE} to the folder that has {name}/"
    raise DataError(f"There is no file or folder {path}: {how}.")
