"""For every loader, settings of a small source that it makes in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.support.dumps import old_dump
from tests.support.prepared import write_prepared

from evergram.data.corpus import Corpus
from evergram.data.loaders import LoaderSettings


def movielens(folder: Path) -> LoaderSettings:
    ratings = "userId,movieId,rating,timestamp\n1,10,4.5,30\n2,10,3.0,20\n1,11,5.0,10\n"
    (folder / "ratings.csv").write_text(ratings)
    (folder / "movies.csv").write_text("movieId,title,genres\n10,A (1999),Drama|War\n")
    return LoaderSettings(str(folder))


def amazon(folder: Path) -> LoaderSettings:
    rows = [("ann", "a1", 5.0, 30), ("ben", "a1", 1.0, 20), ("ann", "a2", 4.0, 10)]
    names = ("reviewerID", "asin", "overall", "unixReviewTime")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    (folder / "reviews.json").write_text("\n".join(lines) + "\n")
    return LoaderSettings(str(folder / "reviews.json"))


def mediawiki(folder: Path) -> LoaderSettings:
    return LoaderSettings(str(old_dump(folder)), prefix="xwiki-1")


def wikispeedia(folder: Path) -> LoaderSettings:
    (folder / "articles.tsv").write_text("# all\n\n%C3%81ed\nA_b\nAlone\n")
    (folder / "links.tsv").write_text("# FORMAT: a b\n\n%C3%81ed\tA_b\nA_b\t%C3%81ed\n")
    rows = "A_b\tsubject.X\nA_b\tsubject.Y.Z\n%C3%81ed\tsubject.X\n"
    (folder / "categories.tsv").write_text(rows)
    return LoaderSettings(str(folder))


def adjacency_list(folder: Path) -> LoaderSettings:
    (folder / "train.txt").write_text("0 7 8\n1 7\n2\n")
    return LoaderSettings(str(folder / "train.txt"))


def table(folder: Path) -> LoaderSettings:
    (folder / "rows.csv").write_text("user,candidate,time\nann,7,30\nben,7,20\nann,8,10\n")
    return LoaderSettings(str(folder / "rows.csv"), columns={"query": "user"})


def prepared(folder: Path) -> LoaderSettings:
    corpus = Corpus.of([("ann", 8, 1, 10), ("ben", 7, 1, 20), ("ann", 7, 1, 30)])
    if not (folder / "prepared").exists():
        write_prepared(corpus, folder / "prepared", 0.5)
    return LoaderSettings(str(folder / "prepared"))


def synthetic(folder: Path) -> LoaderSettings:
    return LoaderSettings("", queries=40, candidates=20, interactions=400, drift=0.3)


# By kind, as `LOADERS`.
EXAMPLES: dict[str, Callable[[Path], LoaderSettings]] = {
    loader.__name__: loader
    for loader in (
        *(movielens, amazon, mediawiki, wikispeedia, adjacency_list, table, prepared, synthetic),
    )
}
