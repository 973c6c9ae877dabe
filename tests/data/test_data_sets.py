"""Paths of data sets, and the errors that say how to get missing ones."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from evergram.cli import main
from evergram.data.corpus import Corpus
from evergram.data.data_sets import DATA_SETS, data_folder, existing, whole_path
from evergram.errors import DataError
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "data-sets.md").read_text()


def test_the_folder_is_the_variable_or_data_where_the_process_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERGRAM_DATA", raising=False)
    assert whole_path("$EVERGRAM_DATA/gowalla", Path("/recipes")) == tmp_path / "data" / "gowalla"
    monkeypatch.setenv("EVERGRAM_DATA", "/sets")
    assert data_folder() == Path("/sets")
    assert whole_path("$EVERGRAM_DATA/gowalla", Path("/recipes")) == Path("/sets/gowalla")
    assert whole_path("../x.csv", Path("/recipes")) == Path("/x.csv")


def test_an_existing_path_is_returned_and_a_missing_one_is_named(tmp_path: Path) -> None:
    assert existing(tmp_path) == tmp_path
    with pytest.raises(
        DataError, match=r"^There is no file or folder .*rows\.csv; correct the path\.$"
    ):
        existing(tmp_path / "rows.csv")


@pytest.mark.parametrize("name", DATA_SETS)
def test_the_error_about_a_missing_data_set_gives_its_command(name: str, tmp_path: Path) -> None:
    data_set = DATA_SETS[name]
    with pytest.raises(DataError) as caught:
        existing(tmp_path / name / "train.txt")
    sentence = str(caught.value)
    for part in (data_set.title, data_set.terms, data_set.command, "EVERGRAM_DATA"):
        assert part in sentence
    assert "\n" not in sentence
    assert not re.search(r"\. [A-Z]", sentence), "more than one sentence"
    assert f"mkdir -p {tmp_path} && cd {tmp_path} &&" in sentence


def test_the_error_about_missing_tables_gives_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"`python -m benchmarks.gowalla` makes it of the data set"):
        existing(tmp_path / "build" / "gowalla" / "train.parquet")


def test_training_on_a_missing_data_set_gives_the_command_that_fetches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(ROOT / "recipes" / "movielens.toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERGRAM_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["evergram", "train", recipe, "--lineage", "lineage"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    sentence = " ".join(capsys.readouterr().err.split())
    wanted = DATA_SETS["movielens-25m-head"]
    assert f"There is no file or folder {tmp_path}/data/movielens-25m-head:" in sentence
    for part in (wanted.title, wanted.terms, "ml-25m.zip", "docs/data-sets.md"):
        assert part in sentence


@pytest.mark.parametrize("name", DATA_SETS)
def test_the_page_has_every_data_set_with_its_terms_and_its_command(name: str) -> None:
    section = PAGE.split(f"\n## `{name}`")[1].split("\n## ")[0]
    assert DATA_SETS[name].command in section
    assert DATA_SETS[name].terms in section


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.stem)
def test_no_recipe_leads_out_of_the_repository(path: Path) -> None:
    data = tomllib.loads(path.read_text())["data"]
    for text in (data.get("path"), data.get("test")):
        if text is None or text.startswith("$EVERGRAM_DATA/"):
            continue
        assert (path.parent / text).resolve().is_relative_to(ROOT)


# The beginnings of files that no kind of data reads as they are; the pairs that they hold.
FILES = {
    "lastfm": (
        {"all_data.csv": ",0,1,2\n0,5,40,13\n1,5,41,2\n2,6,40,9\n"},
        [(5, 40), (5, 41), (6, 40)],
    ),
    "citeulike-t": ({"users.dat": "2 495 1631\n0\n1 495\n"}, [(0, 495), (0, 1631), (2, 495)]),
    "foursquare": (
        {"trainData.txt": "0 12 3.0\n0 13 1.0\n", "testData.txt": "4\t12\t1.0\n"},
        [(0, 12), (0, 13), (4, 12)],
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_the_python_of_the_page_reads_a_set_that_no_kind_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, pairs = FILES[name]
    (tmp_path / name).mkdir()
    for file, text in files.items():
        (tmp_path / name / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    section = PAGE.split(f"\n## `{name}`")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "data-sets.md", "exec"), names)
    assert pairs_of(names["corpus"]) == pairs


def test_the_columns_of_lastfm_are_named_in_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "all_data.csv"
    path.write_text(FILES["lastfm"][0]["all_data.csv"])
    (line,) = re.findall(r"columns = \{.*?\}", PAGE.split("\n## `lastfm`")[1])[:1]
    data = {"kind": "table", "path": str(path), **tomllib.loads(line)}
    assert pairs_of(load_corpus(Recipe.of({"data": data}))) == FILES["lastfm"][1]


def pairs_of(corpus: Corpus) -> list[tuple[Any, Any]]:
    """The pairs of a corpus by their ids, ascending."""
    ids = corpus.queries.vocabulary.keys, corpus.candidates.vocabulary.keys
    rows = zip(corpus.column("query").tolist(), corpus.column("candidate").tolist(), strict=True)
    return sorted((ids[0][q].as_py(), ids[1][c].as_py()) for q, c in rows)
