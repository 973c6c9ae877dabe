"""The data sets of `recipes/`: their sources, their terms, and commands that fetch them.

`$EVERGRAM_DATA` at the start of a path in a recipe stands for the folder of data sets: the value of
that variable, or a folder `data/` where the process runs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError

VARIABLE = "EVERGRAM_DATA"
PREFIX = f"${VARIABLE}/"


@dataclass(frozen=True)
class DataSet:
    """A public data set.

    Args:
        title: a short description.
        terms: of its owner.
        command: makes its folder, run in the folder of data sets.
        tables: makes Parquet tables of it in `build/`, run in Evergram's repository; "" if recipes
            read the folder itself.
    """

    title: str
    terms: str
    command: str
    tables: str = ""


_MOVIELENS = "https://files.grouplens.org/datasets/movielens"
_LIGHTGCN = "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/master/data"

# By folder; `reproduction` adds its own.
DATA_SETS = {
    "movielens-25m-head": DataSet(
        "the ratings of users 1 to 2687 of MovieLens 25M",
        "GroupLens' terms (research, no commercial use, redistribution under the same terms)",
        f"curl -fL -O {_MOVIELENS}/ml-25m.zip && mkdir -p movielens-25m-head && "
        "unzip -p ml-25m.zip ml-25m/ratings.csv | head -n 391224 > movielens-25m-head/ratings.csv "
        "&& unzip -p ml-25m.zip ml-25m/movies.csv > movielens-25m-head/movies.csv",
    ),
    "movielens-latest-small": DataSet(
        "MovieLens latest small, of 9/2018",
        "GroupLens' terms (research, no commercial use, redistribution under the same terms)",
        "mkdir -p movielens-latest-small && curl -fL -o movielens-latest-small/ml-latest-small.zip "
        f"{_MOVIELENS}/ml-latest-small.zip",
    ),
    "gowalla": DataSet(
        "check-ins of Gowalla, in the public split of LightGCN and NGCF",
        "public check-ins (SNAP); cite Cho, Myers and Leskovec, KDD 2011",
        f"mkdir -p gowalla && cd gowalla && curl -fL --fail-early -O {_LIGHTGCN}/gowalla/train.txt "
        f"-O {_LIGHTGCN}/gowalla/test.txt && gzip train.txt test.txt",
        tables="python -m benchmarks.gowalla",
    ),
    "yelp2018": DataSet(
        "reviews of Yelp, 2018, in the public split of LightGCN and NGCF",
        "Yelp open data set (for research)",
        f"mkdir -p yelp2018 && cd yelp2018 && curl -fL --fail-early "
        f"-O {_LIGHTGCN}/yelp2018/train.txt -O {_LIGHTGCN}/yelp2018/test.txt && "
        "gzip train.txt test.txt",
    ),
}


def data_folder() -> Path:
    """Return the folder of data sets: $EVERGRAM_DATA, or `data` in the current folder."""
    return Path(os.environ.get(VARIABLE) or "data")


def whole_path(text: str, folder: Path) -> Path:
    """Return the path that a recipe names, absolute.

    Args:
        text: the path in the recipe; `$EVERGRAM_DATA/` at its start is the folder of data sets.
        folder: the base of relative paths.
    """
    if text.startswith(PREFIX):
        return (data_folder() / text.removeprefix(PREFIX)).resolve()
    return (folder / text).resolve()


def _meant(path: Path) -> str:
    """Return the data set, or the name beside a path's first missing part, that was meant."""
    parts = [part for part in (path, *path.parents) if not part.exists()]
    for part in parts:
        if hint := did_you_mean(part.name, DATA_SETS):
            return hint
    folder = parts[-1].parent
    return (
        did_you_mean(parts[-1].name, [e.name for e in folder.iterdir()]) if folder.is_dir() else ""
    )


def existing(path: str | Path) -> Path:
    """Return an existing path of data.

    Raises: DataError: nothing is there; for a public data set the error gives its terms and the
        command that fetches it.
    """
    path = Path(path)
    if path.exists():
        return path
    folders = [part for part in (path, *path.parents) if part.name in DATA_SETS]
    if not folders:
        raise DataError(f"There is no file or folder {path}{_meant(path)}; correct the path.")
    folder = folders[0]
    data_set = DATA_SETS[folder.name]
    if data_set.tables and path.suffix == ".parquet":
        raise DataError(
            f"There is no file or folder {path}: `{data_set.tables}` makes it of the data set "
            f"{folder.name} (docs/data-sets.md says how to get that)."
        )
    command = f"mkdir -p {folder.parent} && cd {folder.parent} && {data_set.command}"
    raise DataError(
        f"There is no file or folder {path}: get {data_set.title}, under {data_set.terms}, with "
        f"`{command}`, or set {VARIABLE} to the folder that has {folder.name}/ (docs/data-sets.md "
        "lists all data sets)."
    )
