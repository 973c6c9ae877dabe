"""The kind of a path is told by its name or its content, and columns by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from evergram.errors import DataError
from evergram.training.first_recipe import sources
from evergram.training.first_recipe.sources import columns_of, source_at


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.csv", "table"),
        ("a.TSV.gz", "table"),
        ("a.parquet", "table"),
        ("train.txt", "adjacency_list"),
        ("ml-1m.zip", "movielens"),
        ("ml/ratings.dat", "movielens"),
        ("shop/prepared.json", "prepared"),
        ("parts/part-0.parquet", "table"),
    ],
)
def test_a_kind_is_told_by_a_name_or_by_what_a_folder_holds(
    tmp_path: Path, name: str, kind: str
) -> None:
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    place.touch()
    path = place if "/" not in name else place.parent
    assert sources._kind_of(path) == kind


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


def test_names_of_their_own_win_over_guesses() -> None:
    names = ["query", "user", "candidate", "ts", "colour"]
    assert columns_of("f", names, {}, text=True) == (
        {"query": "query", "candidate": "candidate", "time": "ts"},
        ("time",),
    )
    named = {"query": "user", "candidate": "colour"}
    assert columns_of("f", names, named, text=True)[0] == {**named, "time": "ts"}


@pytest.mark.parametrize(
    ("names", "named", "problem"),
    [
        (["user", "film", "item"], {}, "candidate cannot be told: it may be film or item; its"),
        (["user", "film", "item"], {}, "--column candidate=NAME"),
        (["a", "item"], {}, "the query cannot be told: no column is called like one"),
        (["user", "item", "date", "day"], {}, "the time cannot be told: it may be date or day"),
        (["user", "item"], {"query": "usr"}, "f has no column 'usr'; its columns are: user, item"),
        (["user", "item"], {"id": "user"}, "names no role; the roles are: query, candidate, value"),
        (["7", "12"], {}, "seems to be a row: write a line above it"),
    ],
)
def test_what_cannot_be_told_is_refused_with_the_option_that_says_it(
    names: list[str], named: dict[str, str], problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        columns_of("f", names, named, text=True)


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
