"""For every loader, settings of a small source that it makes in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.support.prepared import write_prepared

from evergram.data.corpus import Corpus


@dataclass(frozen=True)
class LoaderSettings:
    """The table [data] of a recipe, as loaders see it."""

    path: str | None = None
    metadata: str | None = None
    minimum_products: int = 1
    described_only: bool = False
    prefix: str | None = None
    query_features: str | None = None
    candidate_features: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    shared_ids: bool = False
    bad_rows: Literal["refuse", "drop"] = "refuse"
    queries: int = 40
    candidates: int = 20
    interactions: int = 400
    drift: float = 0.3


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
    tables = {
        "page": (
            "page_id page_namespace page_title page_is_redirect",
            "(1,0,'April',0),(2,0,'May',0)",
        ),
        "pagelinks": ("pl_from pl_namespace pl_title", "(1,0,'May'),(2,0,'April')"),
        "categorylinks": ("cl_from cl_to", "(1,'Months')"),
        "redirect": ("rd_from rd_namespace rd_title rd_interwiki", ""),
    }
    for name, (columns, rows) in tables.items():
        lines = ",\n".join(f"  `{c}` varbinary(255) NOT NULL DEFAULT ''" for c in columns.split())
        text = f"CREATE TABLE `{name}` (\n{lines},\n  KEY `k` (`x`)\n) ENGINE=InnoDB;\n"
        text += f"INSERT INTO `{name}` VALUES {rows};\n" if rows else ""
        (folder / f"xwiki-1-{name}.sql").write_text(text)
    return LoaderSettings(str(folder), prefix="xwiki-1")


def wikispeedia(folder: Path) -> LoaderSettings:
    (folder / "articles.tsv").write_text("April\nMay\n")
    (folder / "links.tsv").write_text("April\tMay\nMay\tApril\n")
    (folder / "categories.tsv").write_text("April\tsubject.Months\n")
    return LoaderSettings(str(folder))


def adjacency_list(folder: Path) -> LoaderSettings:
    (folder / "train.txt").write_text("0 7 8\n1 7\n2\n")
    return LoaderSettings(str(folder / "train.txt"))


def table(folder: Path) -> LoaderSettings:
    (folder / "rows.csv").write_text("user,candidate,time\nann,7,30\nben,7,20\nann,8,10\n")
    return LoaderSettings(str(folder / "rows.csv"), columns={"query": "user"})


def prepared(folder: Path) -> LoaderSettings:
    rows = [("ann", 8, 10), ("ben", 7, 20), ("ann", 7, 30)]
    names = ("query", "candidate", "time")
    corpus = Corpus.of([dict(zip(names, row, strict=True)) for row in rows])
    if not (folder / "prepared").exists():
        write_prepared(corpus, folder / "prepared", 0.5)
    return LoaderSettings(str(folder / "prepared"))


def synthetic(folder: Path) -> LoaderSettings:
    return LoaderSettings()


# By kind, as `LOADERS`.
EXAMPLES: dict[str, Callable[[Path], LoaderSettings]] = {
    "movielens": movielens,
    "amazon": amazon,
    "mediawiki": mediawiki,
    "wikispeedia": wikispeedia,
    "adjacency_list": adjacency_list,
    "table": table,
    "prepared": prepared,
    "synthetic": synthetic,
}
