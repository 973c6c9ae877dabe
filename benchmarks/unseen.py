"""Public sets that nothing was chosen on, as tables of the pairs: they confirm the defaults.

They were picked before a number of them was seen, for size (under 200,000 pairs), domain (music,
papers, places) and for being published where git reaches them. docs/data-sets.md says how each is
downloaded.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import DATA, ROOT
from evergram.data.data_sets import existing

Pair = tuple[str, str]


def _lastfm(folder: Path) -> Iterator[Pair]:
    """`all_data.csv`: row, user, artist, times listened."""
    with (folder / "all_data.csv").open(newline="") as file:
        lines = csv.reader(file)
        next(lines)
        yield from ((user, artist) for _, user, artist, _ in lines)


def _citeulike(folder: Path) -> Iterator[Pair]:
    """`users.dat`: a line a user, the number of papers and then their numbers."""
    for user, line in enumerate((folder / "users.dat").read_text().splitlines()):
        yield from ((str(user), paper) for paper in line.split()[1:])


def _foursquare(folder: Path) -> Iterator[Pair]:
    """`trainData.txt` and `testData.txt`: user, place, visits."""
    for name in ("trainData.txt", "testData.txt"):
        for line in (folder / name).read_text().splitlines():
            user, place, _ = line.split()
            yield user, place


READERS: dict[str, Callable[[Path], Iterator[Pair]]] = {
    "lastfm": _lastfm,
    "citeulike-t": _citeulike,
    "foursquare": _foursquare,
}


def convert(name: str) -> Path:
    """Write build/<name>/pairs.parquet (columns `query`, `candidate`), each pair once.

    Returns: the file.
    Raises: DataError: it is not there; the error says how to download it.
    """
    pairs = list(dict.fromkeys(READERS[name](existing(DATA / name))))
    target = ROOT / "build" / name / "pairs.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    query, candidate = zip(*pairs, strict=True)
    pq.write_table(pa.table({"query": query, "candidate": candidate}), target)
    return target
