"""For every loader, settings of a small source that it makes in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.prepared import write_prepared

import reproduction  # noqa: F401  # adds its loaders
from evergram.data.corpus import Corpus
from evergram.data.loaders import LOADERS, DataSettings


def of(kind: str, path: Path, **keys: Any) -> DataSettings:
    return LOADERS.of({"kind": kind, "path": str(path), **keys})


def movielens(folder: Path) -> DataSettings:
    ratings = "userId,movieId,rating,timestamp\n1,10,4.5,30\n2,10,3.0,20\n1,11,5.0,10\n"
    (folder / "ratings.csv").write_text(ratings)
    (folder / "movies.csv").write_text("movieId,title,genres\n10,A (1999),Drama|War\n")
    return of("movielens", folder)


def amazon(folder: Path) -> DataSettings:
    rows = [("ann", "a1", 5.0, 30), ("ben", "a1", 1.0, 20), ("ann", "a2", 4.0, 10)]
    names = ("reviewerID", "asin", "overall", "unixReviewTime")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    (folder / "reviews.json").write_text("\n".join(lines) + "\n")
    return of("amazon", folder / "reviews.json")


def wikispeedia(folder: Path) -> DataSettings:
    (folder / "articles.tsv").write_text("# all\n\n%C3%81ed\nA_b\nAlone\n")
    (folder / "links.tsv").write_text("# FORMAT: a b\n\n%C3%81ed\tA_b\nA_b\t%C3%81ed\n")
    rows = "A_b\tsubject.X\nA_b\tsubject.Y.Z\n%C3%81ed\tsubject.X\n"
    (folder / "categories.tsv").write_text(rows)
    return of("wikispeedia", folder)


def adjacency_list(folder: Path) -> DataSettings:
    (folder / "train.txt").write_text("0 7 8\n1 7\n2\n")
    return of("adjacency_list", folder / "train.txt")


def table(folder: Path) -> DataSettings:
    (folder / "rows.csv").write_text("user,candidate,time\nann,7,30\nben,7,20\nann,8,10\n")
    return of("table", folder / "rows.csv", columns={"query": "user"})


def prepared(folder: Path) -> DataSettings:
    corpus = Corpus.of([("ann", 8, 1, 10), ("ben", 7, 1, 20), ("ann", 7, 1, 30)])
    if not (folder / "prepared").exists():
        write_prepared(corpus, folder / "prepared")
    return of("prepared", folder / "prepared")


def synthetic(folder: Path) -> DataSettings:
    return LOADERS.of({"kind": "synthetic", "queries": 40, "candidates": 20, "interactions": 400})


# By kind, as `LOADERS` with the loaders of `reproduction`.
EXAMPLES: dict[str, Callable[[Path], DataSettings]] = {
    loader.__name__: loader
    for loader in (*(movielens, amazon, wikispeedia, adjacency_list, table, prepared, synthetic),)
}
