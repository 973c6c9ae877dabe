"""A first recipe loads, names its data from where it lies, and says what was guessed."""

from __future__ import annotations

import random
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from evergram.data.corpus import Corpus
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.data.rolling_window import RollingWindow
from evergram.data.split import HeldOut, Split, random_split, window_split
from evergram.errors import DataError
from evergram.training.corpora import load_corpus
from evergram.training.first_recipe import first_recipe
from evergram.training.first_recipe.recipe_text import Settings, dim_of, recipe_text
from evergram.training.first_recipe.survey import Survey
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


@pytest.mark.parametrize("separator", [";", "\t"])
def test_odd_files_are_read_as_plain_ones(tmp_path: Path, separator: str) -> None:
    plain = first_recipe(write_clicks(tmp_path / "plain.csv"))
    text = (tmp_path / "plain.csv").read_text().replace("ts", "played_at").replace(",", separator)
    (tmp_path / "odd.csv").write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    odd = first_recipe(tmp_path / "odd.csv")
    assert odd.survey == plain.survey
    assert odd.recipe.split == plain.recipe.split
    assert any("Guessed by its cells: time;" in sentence for sentence in odd.sentences())


SURVEY = Survey(
    rows=50_000,
    queries=900,
    candidates=700,
    repeats=0,
    density=0.08,
    first_time=None,
    last_time=None,
    lowest_value=1.0,
    highest_value=5.0,
    held_out=100,
    unknown_queries=20,
    unknown_candidates=20,
)


@pytest.mark.parametrize(
    ("rows", "ids", "dim"),
    [(1_000, 500, 16), (50_000, 500, 32), (5_000_000, 500, 64), (10**8, 500, 128), (10**8, 9, 4)],
)
def test_more_data_gets_more_dims_and_few_ids_do_not(rows: int, ids: int, dim: int) -> None:
    assert dim_of(replace(SURVEY, rows=rows, candidates=ids)) == dim


@pytest.mark.parametrize("path", ["a.csv", 'o"dd\\\n\x7fname.csv', "/ab/ü.csv"])
def test_the_text_is_toml_with_a_comment_on_each_value_that_is_chosen(path: str) -> None:
    data = {"kind": "table", "path": path, "columns": {"query": 'a "b"'}}
    settings = Settings("shop", data, {"kind": "random", "share": 0.1}, 32, 100)
    text = recipe_text(settings, SURVEY)
    read = tomllib.loads(text)
    assert read["data"] == data
    assert read["model"]["dim"] == 32
    assert "# minimum_value = 5 " in text
    assert ("relative to this file" in text) == (not path.startswith("/"))


def rows_of(number: int) -> list[tuple[int, int, float, int]]:
    """Pairs with a weight and a time; new ids appear as time goes on."""
    draw = random.Random(0)
    return [
        (draw.randrange(5 + i // 5), draw.randrange(3 + i // 10), 1.0, 1_700_000_000 + 60 * i)
        for i in range(number)
    ]


def splits(corpus: Corpus) -> list[Split]:
    held_out = HeldOut("s")
    last = RollingWindow.parse("25 %")
    return [
        window_split(corpus, last=last, held_out=held_out),
        random_split(corpus, share=0.4, held_out=held_out),
    ]


@pytest.mark.parametrize("which", [0, 1])
def test_a_survey_has_what_plain_counting_has(which: int) -> None:
    rows = rows_of(400)
    if which == 1:  # pairs whose query is unknown are counted as often as they occur
        rows = list({row[:2]: row for row in rows}.values())
    corpus = Corpus.of(rows)
    split = splits(corpus)[which]
    survey = Survey.of(corpus, split)
    pairs = {row[:2] for row in rows}
    sides = [{pair[side] for pair in pairs} for side in (0, 1)]
    assert (survey.rows, survey.queries, survey.candidates) == (len(rows), *map(len, sides))
    assert survey.repeats == len(rows) - len(pairs)
    assert survey.density == pytest.approx(len(pairs) / (len(sides[0]) * len(sides[1])))
    assert (survey.first_time, survey.last_time) == (
        min(r[3] for r in rows),
        max(r[3] for r in rows),
    )
    trained = trained_pairs(split)
    known = [{pair[side] for pair in trained} for side in (0, 1)]
    held = pairs - trained
    assert survey.held_out == len(held)
    assert survey.unknown_queries == sum(q not in known[0] for q, _ in held)
    expected = sum(q in known[0] and c not in known[1] for q, c in held)
    assert survey.unknown_candidates == expected > 0
    cold = survey.unknown_queries + survey.unknown_candidates
    assert survey.as_json()["cold_share"] == survey.cold_share == cold / survey.held_out


def trained_pairs(split: Split) -> set[tuple[int, int]]:
    training = split.training
    query, candidate = (
        side.vocabulary.keys.to_pylist() for side in (training.queries, training.candidates)
    )
    columns = (training.column(name).tolist() for name in ("query", "candidate"))
    return {(query[q], candidate[c]) for q, c in zip(*columns, strict=True)}


def test_sentences_name_dates_and_what_is_not_there() -> None:
    corpus = Corpus.of(rows_of(100))
    split = window_split(corpus, last=RollingWindow.parse("25 %"), held_out=HeldOut("s"))
    text = " ".join(Survey.of(corpus, split).sentences())
    assert "Times are from 2023-11-14 22:13 to 2023-11-14 23:52." in text
    assert "Values are" not in text
    plain = Corpus.of(
        {"query": [0, 0, 1, 1], "candidate": [5, 6, 5, 6], "value": [1.0, 2.5, 4.0, 3.0]}
    )
    counted = Survey.of(plain, split)
    assert "There are no times. Values are from 1 to 4." in " ".join(counted.sentences())
