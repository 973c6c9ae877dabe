"""The kind of a path is told by its name or its content, and columns by their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evergram.errors import DataError
from evergram.training.first_recipe import sources
from evergram.training.first_recipe.sources import columns_of, source_at


def test_an_unknown_kind_is_refused_and_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(DataError, match=r"no known format; tables end in.*--kind"):
        source_at(tmp_path / "x.json")
    with pytest.raises(DataError, match="folder of no known kind"):
        source_at(tmp_path)
    with pytest.raises(DataError, match="--kind is 'synthetic'; it is one of: movielens"):
        source_at(tmp_path / "x.json", "synthetic")
    with pytest.raises(DataError, match=r"columns of a table, and .* is read as amazon"):
        source_at(tmp_path / "x.json", "amazon", {"query": "a"})
    assert source_at(tmp_path / "x.json", "amazon").kind == "amazon"
    with pytest.raises(DataError, match="There is no file or folder"):
        source_at(tmp_path / "none.csv")


def test_a_folder_of_tables_is_a_table(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("user,item,at\n1,2,2020-01-01\n")
    assert source_at(tmp_path).columns == {"query": "user", "candidate": "item", "time": "at"}
    with pytest.raises(DataError, match="several tables become one by 'evergram prepare FILE"):
        source_at(tmp_path / "*.csv")


def test_names_of_their_own_win_over_guesses() -> None:
    names = ["query", "user", "candidate", "ts", "colour"]
    assert columns_of("f", names, {}, text=True) == (
        {"query": "query", "candidate": "candidate", "time": "ts"},
        ("time",),
    )
    named = {"query": "user", "candidate": "colour"}
    assert columns_of("f", names, named, text=True)[0] == {**named, "time": "ts"}


def test_what_cannot_be_told_is_refused_with_the_option_that_says_it() -> None:
    two, named = ["user", "film", "item"], {"query": "usr", "candidate": "x"}
    cases: list[tuple[list[str], dict[str, str], str]] = [
        (two, {}, "film or item"),
        (two, {}, "--column candidate=NAME"),
        (["a", "b"], {}, "--column query=NAME --column candidate=NAME"),
        (["user", "item", "date", "day"], {}, "date or day"),
        (["user", "item"], named, "'usr' (did you mean 'user'?), 'x'"),
        (["user", "item"], {"id": "user"}, "names no role"),
        (["7", "12"], {}, "seems to be a row"),
    ]
    for names, columns, problem in cases:
        with pytest.raises(DataError, match=re.escape(problem)):
            columns_of("f", names, columns, text=True)


def test_columns_that_the_file_calls_otherwise_are_the_recipes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("query,movie_id,stars,shop\n1,2,3,4\n")
    source = source_at(tmp_path / "a.csv")
    assert source.renamed == {"candidate": "movie_id", "value": "stars"}
    assert (source.guessed, source.unread) == (("candidate", "value"), ("shop",))


def test_a_table_beyond_memory_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("query,candidate\n1,2\n")
    monkeypatch.setattr(sources, "memory_bytes", lambda: 4)
    with pytest.raises(DataError, match=r"'evergram prepare .*a\.csv FOLDER'"):
        source_at(tmp_path / "a.csv")


MOMENTS = [1_700_000_000 + 3600 * i for i in range(20)]
ISO = [f"2023-11-{1 + i:02d}T10:00:00" for i in range(20)]


@pytest.mark.parametrize(
    ("name", "cells", "taken"),
    [
        ("played_at", ISO, True),
        ("played_at", [f"{t}Z" for t in ISO], True),
        ("played_at", [f"{t}.5+02:00" for t in ISO], True),
        ("played_at", [t.replace("T", " ") for t in ISO], True),
        ("bought", [t[:10] for t in ISO], True),
        ("when", MOMENTS, True),
        ("when", [1000 * t for t in MOMENTS], True),
        ("when", [f"{t}.25" for t in MOMENTS], True),
        ("order_no", MOMENTS, False),
        ("when", [*MOMENTS[1:], ""], False),
        ("when", [*MOMENTS[1:], 1000 * MOMENTS[0]], False),
        ("price", range(20), False),
        ("year", range(1990, 2010), False),
        ("note", ["a"] * 20, False),
    ],
)
def test_a_time_is_told_by_its_cells(
    tmp_path: Path, name: str, cells: list[object], taken: bool
) -> None:
    rows = "\n".join(f"{i},{i},{cell}" for i, cell in enumerate(cells))
    (tmp_path / "a.csv").write_text(f"user,item,{name}\n{rows}\n")
    source = source_at(tmp_path / "a.csv")
    assert source.columns.get("time") == (name if taken else None)
    assert source.by_content == (("time",) if taken else ())
    assert source.unread == (() if taken else (name,))


def test_a_table_that_is_called_lines_of_ids_is_refused(tmp_path: Path) -> None:
    for separator, suffix in (("\t", ".tsv"), (";", ".csv")):
        (tmp_path / "a.txt").write_text(f"\ufeffuser_id{separator}item_id\n1{separator}2\n")
        with pytest.raises(DataError, match=rf"names columns.*that ends in {suffix}\."):
            source_at(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_text("1 2 3\n")
    assert source_at(tmp_path / "a.txt").kind == "adjacency_list"
