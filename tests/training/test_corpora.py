"""A recipe's data by kind, and its split; what loaders make of files is in tests/data."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.encoders import lineage_with_encoder, two_tower
from tests.support.fits import changed
from tests.support.lineages import lineage_of

from evergram.data.corpus import Corpus, Side, Vocabulary
from evergram.data.pair_hash import PairHash, TrainedPairs
from evergram.encoders.encoder_modules import EncoderModules
from evergram.errors import DataError, LineageError, RecipeError, UnknownVersionError
from evergram.lineage.pair_history import PairHistory
from evergram.training.checkpoint import held_out, load_encoder, trained_pairs
from evergram.training.corpora import (
    final_split,
    load_corpus,
    recorded_recipe,
    salt_of,
    split_for,
)
from evergram.training.recipe import Recipe
from evergram.training.recipe.data import SplitRecipe

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
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate, "time": time}))


def test_by_time_a_version_has_its_own_share_and_a_later_one_more() -> None:
    by_time = changed(AT_RANDOM, "split.kind=time", "split.versions=[0.5, 0.8]")
    corpus = corpus_of(20, 30)
    first, second = (split_for(by_time, corpus, version) for version in (0, 1))
    assert (len(first.training), len(second.training)) == (300, 480)
    with pytest.raises(RecipeError, match="has 2 shares, so version 2 has none; append the share"):
        split_for(by_time, corpus, 2)


def test_nothing_to_test_by_is_refused_and_says_why() -> None:
    with pytest.raises(DataError, match=r"holds out too few pairs .* of 4 interactions"):
        split_for(AT_RANDOM, corpus_of(2, 2), 0)
    corpus = corpus_of(20, 30)
    everything = TrainedPairs.of(PairHash("embeddings").of_corpus(corpus))
    history = PairHistory("embeddings", everything)
    with pytest.raises(DataError, match="were trained on by an earlier version"):
        split_for(AT_RANDOM, corpus, 1, history)


def test_a_refit_trains_on_all_but_the_test_pairs() -> None:
    split = split_for(AT_RANDOM, corpus_of(20, 30), 0)
    assert final_split(split, refits=False) is split
    final = final_split(split, refits=True)
    assert len(final.training) == 20 * 30 - len(final.test) > len(split.training)
    paper = changed(AT_RANDOM, "split.selection=paper")
    with pytest.raises(RecipeError, match=r"set training\.refit = false or split\.selection"):
        final_split(split_for(paper, corpus_of(20, 30), 0), refits=True)


def test_the_salt_is_the_lineages_then_the_recipes_then_its_name() -> None:
    plain, salted = SplitRecipe(), SplitRecipe(salt="mine")
    assert salt_of(plain, "films") == "films"
    assert salt_of(salted, "films") == "mine"
    assert salt_of(plain, "films", PairHistory("theirs")) == "theirs"
    assert salt_of(salted, "films", PairHistory(None)) == "mine"
    with pytest.raises(RecipeError, match="is 'mine' and the lineage holds out by 'theirs'"):
        salt_of(salted, "films", PairHistory("theirs"))


def test_a_version_records_data_in_python_unless_its_recipe_gives_the_same_corpus() -> None:
    planted = {"kind": "synthetic", "queries": 20, "candidates": 10, "interactions": 90}
    named = Recipe.of({"data": planted})
    corpus = load_corpus(named)
    other_model = Recipe.of({"data": planted, "model": {"dim": 3}})
    assert recorded_recipe(other_model, corpus) == other_model
    for other in (["seed=1"], ["data.drift=0.5"]):
        recorded = recorded_recipe(Recipe.of({"data": planted}, other), corpus)
        assert recorded.data.kind == "python"
    assert recorded_recipe(named, Corpus.of([("a", "b")])).data.kind == "python"


def test_a_published_encoder_is_read_as_it_was(tmp_path: Path) -> None:
    lineage, encoder = lineage_with_encoder(tmp_path / "l"), two_tower()
    loaded = load_encoder(lineage, 0)
    assert not loaded.training
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])


def test_an_encoder_that_is_not_there_or_needs_no_module_is_refused(tmp_path: Path) -> None:
    lineage = lineage_with_encoder(tmp_path / "l")
    with pytest.raises(UnknownVersionError):
        load_encoder(lineage, 3)
    modules = EncoderModules(torch.nn.Linear(1, 4), torch.nn.Linear(1, 4), list, list)
    with pytest.raises(LineageError, match="version 0 is a built-in two_tower, so no module fits"):
        load_encoder(lineage, 0, modules)
    with pytest.raises(LineageError, match="came from a file of embeddings and has no model"):
        load_encoder(lineage_of(tmp_path / "files", 1), 0)


def test_held_out_objects_are_the_same_in_every_version() -> None:
    held: list[set[str]] = []
    for size in (500, 250):
        names = [f"id{i}" for i in range(size)]
        marks = held_out(Side(Vocabulary(pa.array(names))), 0.2)
        held.append({name for name, is_held in zip(names, marks, strict=True) if is_held})
    assert held[1] == {name for name in held[0] if int(name[2:]) < 250}
    assert 0.15 < len(held[0]) / 500 < 0.25


def test_trained_pairs_are_hashed_with_the_salt() -> None:
    corpus = Corpus.of([("a", "x"), ("a", "y")])
    salt, pairs = trained_pairs(corpus, "films")
    assert (salt, len(pairs)) == ("films", 2)
    assert trained_pairs(corpus, "other")[1].marks.tolist() != pairs.marks.tolist()
