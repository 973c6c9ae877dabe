"""A recipe's data, by kind; what each loader makes of its files is in tests/data."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from evergram.errors import RecipeError
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe


def recipe(**data: Any) -> Recipe:
    return Recipe.of({"data": {k: str(v) for k, v in data.items()}})


def test_amazon(tmp_path: Path) -> None:
    review = {"reviewerID": "a", "asin": "x", "overall": 4.0, "unixReviewTime": 1}
    (tmp_path / "reviews.json").write_text(json.dumps(review) + "\n")
    (tmp_path / "elsewhere.json").write_text(
        json.dumps({"asin": "x", "brand": "Acme", "category": ["Toys"]}) + "\n"
    )
    corpus = load_corpus(
        recipe(kind="amazon", path=tmp_path / "reviews.json", metadata=tmp_path / "elsewhere.json")
    )
    assert corpus.candidates.features["brand"].vocabulary.keys.to_pylist() == ["Acme"]


def test_wikispeedia(tmp_path: Path) -> None:
    (tmp_path / "articles.tsv").write_text("A\nB\n")
    (tmp_path / "links.tsv").write_text("A\tB\n")
    (tmp_path / "categories.tsv").write_text("A\tsubject.X\n")
    assert len(load_corpus(recipe(kind="wikispeedia", path=tmp_path))) == 1


def test_a_dump_says_what_it_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tables = {
        "page": (
            "page_id page_namespace page_title page_is_redirect",
            "(1,0,'A',0),(2,0,'B',0),(3,0,'broken)",
        ),
        "pagelinks": ("pl_from pl_namespace pl_title", "(1,0,'B')"),
        "categorylinks": ("cl_from cl_to", "(1,'X')"),
        "redirect": ("rd_from rd_namespace rd_title", "(9,0,'A')"),
    }
    for table, (columns, rows) in tables.items():
        fields = ",\n".join(f"  `{c}` varbinary(255) NOT NULL" for c in columns.split())
        (tmp_path / f"aawiki-20260101-{table}.sql").write_text(
            f"CREATE TABLE `{table}` (\n{fields}\n);\nINSERT INTO `{table}` VALUES {rows};\n"
        )
    with caplog.at_level(logging.WARNING):
        corpus = load_corpus(recipe(kind="mediawiki", path=tmp_path, prefix="aawiki-20260101"))
    assert len(corpus) == 1
    assert "page.sql: malformed rows left out: 1" in caplog.text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kind": "movielens", "path": "p", "prefix": "x"}, "'mediawiki' only"),
        ({"kind": "mediawiki", "path": "p", "metadata": "x"}, "'amazon' only"),
        ({"kind": "wikispeedia"}, r"needs data\.path"),
    ],
)
def test_keys_of_another_kind(data: dict[str, str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(**data)
