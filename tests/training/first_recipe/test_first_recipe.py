"""A first recipe loads, names its data from where it lies, and says what was guessed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.errors import DataError
from evergram.training.corpora import load_corpus
from evergram.training.first_recipe import first_recipe
from evergram.training.recipe import Recipe


def write_clicks(path: Path, rows: int = 2000, *, times: bool = True, new: bool = False) -> Path:
    """Write clicks; with `new`, each query clicks at one moment only."""
    draw = random.Random(0)
    lines = ["user_id,page_id" + ",ts" * times]
    for i in range(rows):
        user = i // 20 if new else draw.randrange(40)
        lines.append(f"{user},p{draw.randrange(200)}" + f",{1_700_000_000 + i}" * times)
    path.write_text("\n".join(lines))
    return path


def test_a_recipe_in_another_folder_finds_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipes").mkdir()
    write_clicks(Path("my clicks.v2.csv"))
    first = first_recipe(Path("my clicks.v2.csv"), folder=Path("recipes"))
    Path("recipes/r.toml").write_text(first.text)
    recipe = Recipe.load("recipes/r.toml")
    assert recipe == first.recipe
    assert recipe.name == "my-clicks"
    assert len(load_corpus(recipe)) == first.survey.rows == 2000
    assert (recipe.split.kind, recipe.split.last) == ("time", "10 %")
    facts = first.as_json()
    assert facts["columns"] == {"query": "user_id", "candidate": "page_id", "time": "ts"}
    assert 0 < facts["seconds"] < 60
    assert next(first.sentences()) == "Read as table."
    assert any("Guessed by their names: query, candidate, time;" in s for s in first.sentences())


def test_without_times_pairs_are_held_out_at_random(tmp_path: Path) -> None:
    first = first_recipe(write_clicks(tmp_path / "a.csv", times=False))
    assert (first.recipe.split.kind, first.split_again) == ("random", None)
    assert first.survey.held_out > 40


def test_times_that_leave_little_to_judge_by_are_not_split_by(tmp_path: Path) -> None:
    first = first_recipe(write_clicks(tmp_path / "a.csv", new=True))
    assert first.recipe.split.kind == "random"
    assert "although there are times" in [*first.sentences()][-1]


def test_columns_that_are_named_are_not_guessed(tmp_path: Path) -> None:
    path = write_clicks(tmp_path / "a.csv", times=False)
    turned = first_recipe(path, columns={"query": "page_id", "candidate": "user_id"})
    assert (turned.survey.queries, turned.survey.candidates) == (199, 40)
    assert turned.source.guessed == ()


def test_too_little_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds out too few pairs to judge a model by"):
        first_recipe(write_clicks(tmp_path / "a.csv", 3))


def test_a_prepared_folder_is_as_the_table_that_it_was_made_of(tmp_path: Path) -> None:
    path = write_clicks(tmp_path / "a.csv")
    columns = {"query": "user_id", "candidate": "page_id", "time": "ts"}
    prepare(path, tmp_path / "corpus", PrepareSettings(columns=columns, name="my shop"))
    folder, table = first_recipe(tmp_path / "corpus"), first_recipe(path)
    assert (folder.source.kind, folder.recipe.name) == ("prepared", "my-shop")
    assert folder.survey.as_json() == table.survey.as_json()
    assert folder.recipe.split == table.recipe.split


@pytest.mark.parametrize("separator", [",", ";", "|", "\t"])
def test_odd_files_are_read_as_plain_ones(tmp_path: Path, separator: str) -> None:
    plain = first_recipe(write_clicks(tmp_path / "plain.csv"))
    text = (tmp_path / "plain.csv").read_text().replace("ts", "played_at").replace(",", separator)
    (tmp_path / "odd.csv").write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    odd = first_recipe(tmp_path / "odd.csv")
    assert odd.survey == plain.survey
    assert odd.recipe.split == plain.recipe.split
    assert any("Guessed by its cells: time;" in sentence for sentence in odd.sentences())


def test_ids_beyond_64_bits_are_texts(tmp_path: Path) -> None:
    text = write_clicks(tmp_path / "plain.csv").read_text().split("\n")
    rows = [f"{10**25 + int(row.split(',')[0])},{row.split(',', 1)[1]}" for row in text[1:]]
    (tmp_path / "huge.csv").write_text("\n".join([text[0], *rows]))
    plain, huge = first_recipe(tmp_path / "plain.csv"), first_recipe(tmp_path / "huge.csv")
    assert huge.survey == plain.survey
