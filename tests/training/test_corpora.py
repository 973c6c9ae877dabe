"""A recipe's data by kind and its split, and the first recipe of data that nobody described."""

from __future__ import annotations

import random
import re
import tomllib
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.encoders import lineage_with_encoder
from tests.support.fits import changed
from tests.support.lineages import lineage_of

from evergram.data.corpus import Corpus, Side, Vocabulary
from evergram.data.prepared.prepare import PrepareSettings, prepare
from evergram.data.rolling_window import RollingWindow
from evergram.data.split import HeldOut, TrainedPairs, random_split, window_split
from evergram.encoders.module_encoder import EncoderModules
from evergram.errors import DataError, LineageError, RecipeError, UnknownVersionError
from evergram.lineage.lineage import PairHistory
from evergram.training import first_recipe as sources
from evergram.training.build import final_split, load_corpus, recorded_recipe, salt_of, split_for
from evergram.training.checkpoint import held_out, load_encoder
from evergram.training.first_recipe import Survey, columns_of, first_recipe, recipe_text, source_at
from evergram.training.recipe import Recipe

AT_RANDOM = Recipe.of({"data": {"kind": "synthetic"}})


def test_a_least_value_needs_values_and_leaves_some_interaction(tmp_path: Path) -> None:
    path = tmp_path / "clicks.parquet"
    table = pa.table({"query": ["a", "b"], "candidate": ["x", "y"]})
    pq.write_table(table, path)
    values = {"data": {"kind": "table", "path": str(path), "minimum_value": 4.0}}
    with pytest.raises(DataError, match=r"data\.minimum_value needs a column 'value'"):
        load_corpus(Recipe.of(values))
    pq.write_table(table.append_column("value", pa.array([3.0, 5.0])), path)
    assert len(load_corpus(Recipe.of(values))) == 1
    with pytest.raises(DataError, match=r"No interaction has a value of at least 6\.0"):
        load_corpus(Recipe.of(values, ["data.minimum_value=6.0"]))


def corpus_of(queries: int, candidates: int) -> Corpus:
    """Every pair of so many queries and candidates, in order of time."""
    pairs = [(f"q{i}", f"c{j}") for j in range(candidates) for i in range(queries)]
    query, candidate = zip(*pairs, strict=True)
    time = pa.array(range(len(pairs)))
    return Corpus.of(pa.table({"query": query, "candidate": candidate, "time": time}))


def test_by_time_a_version_has_its_own_share_and_a_later_one_more() -> None:
    by_time = changed(AT_RANDOM, "split.kind=time", "split.versions=[0.5, 0.8]")
    corpus = corpus_of(20, 30)
    first, second = (split_for(by_time, corpus, version) for version in (0, 1))
    assert (len(first.training), len(second.training)) == (300, 480)
    with pytest.raises(RecipeError, match="has 2 shares and none for version 2; append the share"):
        split_for(by_time, corpus, 2)


def test_nothing_to_test_by_is_refused_and_says_why() -> None:
    with pytest.raises(DataError, match=r"holds out too few pairs .* of 4 interactions"):
        split_for(AT_RANDOM, corpus_of(2, 2), 0)
    corpus = corpus_of(20, 30)
    everything = TrainedPairs.of_corpus(corpus, "embeddings")
    history = PairHistory("embeddings", everything)
    with pytest.raises(DataError, match="An earlier version of the lineage was trained on all"):
        split_for(AT_RANDOM, corpus, 1, history)


def test_a_refit_trains_on_all_but_the_test_pairs() -> None:
    split = split_for(AT_RANDOM, corpus_of(20, 30), 0)
    assert final_split(split, refits=False) is split
    final = final_split(split, refits=True)
    assert len(final.training) == 20 * 30 - len(final.test) > len(split.training)
    paper = changed(AT_RANDOM, "split.selection=paper")
    with pytest.raises(RecipeError, match=r"set training\.refit = false or split\.selection"):
        final_split(split_for(paper, corpus_of(20, 30), 0), refits=True)


def test_the_salt_is_the_lineages_then_the_recipes_name() -> None:
    assert salt_of("films") == salt_of("films", PairHistory(None)) == "films"
    assert salt_of("films", PairHistory("theirs")) == "theirs"


def test_a_version_records_data_in_python_unless_its_recipe_gives_the_same_corpus() -> None:
    planted = {"kind": "synthetic", "queries": 20, "candidates": 10, "interactions": 90}
    named = Recipe.of({"data": planted})
    corpus = load_corpus(named)
    other_model = Recipe.of({"data": planted, "model": {"dim": 3}})
    assert recorded_recipe(other_model, corpus) == other_model
    for other in (["seed=1"], ["data.interactions=91"]):
        recorded = recorded_recipe(Recipe.of({"data": planted}, other), corpus)
        assert recorded.data.kind == "python"
    assert recorded_recipe(named, Corpus.of([("a", "b")])).data.kind == "python"


def test_an_encoder_that_is_not_there_or_needs_no_module_is_refused(tmp_path: Path) -> None:
    lineage = lineage_with_encoder(tmp_path / "l")
    with pytest.raises(UnknownVersionError):
        load_encoder(lineage, 3)
    modules = EncoderModules(torch.nn.Linear(1, 4), torch.nn.Linear(1, 4), list, list)
    with pytest.raises(
        LineageError, match="version 0 is a built-in two_tower; leave the module out"
    ):
        load_encoder(lineage, 0, modules)
    with pytest.raises(LineageError, match="came from a file: it has no model"):
        load_encoder(lineage_of(tmp_path / "files", 1), 0)


def test_held_out_objects_are_the_same_in_every_version() -> None:
    held: list[set[str]] = []
    for size in (500, 250):
        names = [f"id{i}" for i in range(size)]
        marks = held_out(Side(Vocabulary(pa.array(names))), 0.2)
        held.append({name for name, is_held in zip(names, marks, strict=True) if is_held})
    assert held[1] == {name for name in held[0] if int(name[2:]) < 250}
    assert 0.15 < len(held[0]) / 500 < 0.25


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
    assert len(load_corpus(recipe)) == first.facts["rows"] == 2000
    assert (recipe.split.kind, recipe.split.model_dump()["last"]) == ("time", "10 %")
    assert first.facts["columns"] == {"query": "user_id", "candidate": "page_id", "time": "ts"}
    assert first.sentences[0] == "Read as table."
    assert any("Guessed from column names: query, candidate, time;" in s for s in first.sentences)


def test_times_are_split_by_where_they_leave_enough_to_judge_by(tmp_path: Path) -> None:
    timeless = first_recipe(write_clicks(tmp_path / "a.csv", times=False))
    assert timeless.recipe.split.kind == "random"
    assert timeless.facts["held_out"] > 40
    new = first_recipe(write_clicks(tmp_path / "a.csv", new=True))
    assert new.recipe.split.kind == "random"
    assert "although there are times" in new.sentences[-1]
    with pytest.raises(DataError, match="too few pairs"):
        first_recipe(write_clicks(tmp_path / "a.csv", 3))


def test_a_prepared_folder_is_as_the_table_that_it_was_made_of(tmp_path: Path) -> None:
    path = write_clicks(tmp_path / "a.csv")
    columns = {"query": "user_id", "candidate": "page_id", "time": "ts"}
    prepare(path, tmp_path / "my shop", PrepareSettings(columns=columns))
    folder, table = first_recipe(tmp_path / "my shop"), first_recipe(path)
    assert (folder.facts["kind"], folder.recipe.name) == ("prepared", "my-shop")
    of_files = {"kind", "columns", "guessed", "unread"}
    for key in table.facts.keys() - of_files:
        assert folder.facts[key] == table.facts[key]
    assert folder.recipe.split == table.recipe.split


SURVEY = Survey(50_000, 900, 700, 0, 0.08, None, None, 1.0, 5.0, 100, 20, 20)


@pytest.mark.parametrize("path", ["a.csv", 'o"dd\\\n\x7fname.csv', "/ab/ü.csv"])
def test_the_text_is_toml_with_a_comment_on_each_value_that_is_chosen(path: str) -> None:
    data = {"kind": "table", "path": path, "columns": {"query": 'a "b"'}}
    text = recipe_text("shop", data, {"kind": "random", "share": 0.1}, SURVEY)
    read = tomllib.loads(text)
    assert read["data"] == data
    assert read["model"]["dim"] == 32
    assert "# minimum_value = 5 " in text
    assert ("relative to this file" in text) == (not path.startswith("/"))


# As Gowalla: pairs, queries and candidates.
SPARSE = Survey(810_128, 29_858, 40_981, 0, 6.6e-4, None, None, None, None, 81_000, 20, 20)


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, "softmax_all"),
        ({"candidates": 9_000}, "pointwise"),
        ({"rows": 400_000}, "pointwise"),
        ({"repeats": 400_000}, "pointwise"),
        ({"density": 0.01}, "pointwise"),
        ({"queries": 1_000_000}, "pointwise"),
    ],
)
def test_the_loss_depends_on_the_size_and_density(changed: dict[str, Any], kind: str) -> None:
    survey = replace(SPARSE, **changed)
    data = {"kind": "table", "path": "a.parquet"}
    read = tomllib.loads(recipe_text("shop", data, {"kind": "random", "share": 0.1}, survey))
    recipe = Recipe.of(read)
    assert recipe.task.kind == kind
    assert recipe.model.model_dump()["normalize"] == (kind == "softmax_all")
    # What is marked can be deleted, as `init` says; prepared data is streamed.
    text = recipe_text("shop", data, {"kind": "random", "share": 0.1}, survey)
    plain = re.sub(r"\n\[\w+\]  # softmax\n(?:.+\n?)*|.+  # softmax\n", "\n", text)
    assert Recipe.of(tomllib.loads(plain)).task.kind == "pointwise"
    prepared = {"kind": "prepared", "path": "corpus"}
    read = tomllib.loads(recipe_text("shop", prepared, {"kind": "random", "share": 0.1}, survey))
    assert Recipe.of(read).task.kind == "pointwise"


@pytest.mark.parametrize("by_time", [True, False])
def test_a_survey_has_what_plain_counting_has(by_time: bool) -> None:
    draw = random.Random(0)
    # Pairs with a weight and a time; new ids appear as time goes on.
    rows = [
        (draw.randrange(5 + i // 5), draw.randrange(3 + i // 10), 1.0, 1_700_000_000 + 60 * i)
        for i in range(400)
    ]
    if not by_time:  # pairs whose query is unknown are counted as often as they occur
        rows = list({row[:2]: row for row in rows}.values())
    corpus, held_out = Corpus.of(rows), HeldOut("s")
    split = random_split(corpus, share=0.4, held_out=held_out)
    if by_time:
        split = window_split(corpus, last=RollingWindow.parse("25 %"), held_out=held_out)
    training = split.training
    survey, pairs, times = Survey.of(corpus, split), {r[:2] for r in rows}, [r[3] for r in rows]
    ids = [e.vocabulary.keys.to_pylist() for e in (training.queries, training.candidates)]
    columns = (training.column(name).tolist() for name in ("query", "candidate"))
    trained = {(ids[0][q], ids[1][c]) for q, c in zip(*columns, strict=True)}
    known = [{pair[side] for pair in trained} for side in (0, 1)]
    held = pairs - trained
    queries, candidates = (len({pair[side] for pair in pairs}) for side in (0, 1))
    unknown = sum(q not in known[0] for q, _ in held)
    density = pytest.approx(len(pairs) / (queries * candidates))
    counted: tuple[Any, ...] = (
        *(len(rows), queries, candidates, len(rows) - len(pairs), density),
        *(min(times), max(times), None, None, len(held), unknown),
        *(sum(q in known[0] and c not in known[1] for q, c in held), []),
    )
    assert astuple(survey) == counted
    assert survey.unknown_candidates > 0
    cold = survey.unknown_queries + survey.unknown_candidates
    assert survey.cold_share == cold / survey.held_out


def test_what_a_path_is_is_told_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.json").write_text("{}")
    for arguments, named in (
        (("x.json",), "--kind"),
        (("",), "a folder of unknown kind"),
        (("x.json", "synthetic"), "--kind is 'synthetic'; it is one of: movielens"),
        (("x.json", "movielens", {"query": "a"}), "read as movielens"),
        (("none.csv",), "no file or folder"),
        (("*.csv",), "for several tables run 'evergram prepare FILE"),
    ):
        with pytest.raises(DataError, match=re.escape(named)):
            source_at(tmp_path / arguments[0], *arguments[1:])
    assert source_at(tmp_path / "x.json", "movielens").kind == "movielens"
    (tmp_path / "a.txt").write_text("1 2 3\n")
    assert source_at(tmp_path / "a.txt").kind == "adjacency_list"
    for separator, suffix in (("\t", ".tsv"), (";", ".csv")):
        (tmp_path / "a.txt").write_text(f"\ufeffuser_id{separator}item_id\n1{separator}2\n")
        with pytest.raises(DataError, match=rf"names columns.*that ends in {suffix}\."):
            source_at(tmp_path / "a.txt")
    (tmp_path / "tables").mkdir()
    for name in ("a.csv", "b.csv"):
        (tmp_path / "tables" / name).write_text("user,item,date\n1,2,2020-01-01\n")
    columns = {"query": "user", "candidate": "item", "time": "date"}
    assert source_at(tmp_path / "tables").columns == columns
    monkeypatch.setattr(sources, "machine_memory", lambda: 4)
    with pytest.raises(DataError, match=r"'evergram prepare .*tables FOLDER'"):
        source_at(tmp_path / "tables")


def test_names_of_their_own_win_over_guesses() -> None:
    names = ["query", "user", "candidate", "ts", "colour"]
    assert columns_of("f", names, {}) == (
        {"query": "query", "candidate": "candidate", "time": "ts"},
        ("time",),
    )
    named = {"query": "user", "candidate": "colour"}
    assert columns_of("f", names, named)[0] == {**named, "time": "ts"}


def test_what_cannot_be_told_is_refused_with_the_option_that_says_it() -> None:
    two, named = ["user", "film", "item"], {"query": "usr", "candidate": "x"}
    cases: list[tuple[list[str], dict[str, str], str]] = [
        (two, {}, "film or item"),
        (two, {}, "--column candidate=NAME"),
        (["a", "b"], {}, "--column query=NAME --column candidate=NAME"),
        (["user", "item", "date", "day"], {}, "date or day"),
        (["user", "item"], named, "'usr' (did you mean 'user'?), 'x'"),
        (["user", "item"], {"id": "user"}, "'id' is not a role"),
        (["7", "12"], {}, "if these are data"),
    ]
    for names, columns, problem in cases:
        with pytest.raises(DataError, match=re.escape(problem)):
            columns_of("f", names, columns)
