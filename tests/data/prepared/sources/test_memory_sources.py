"""Corpora of other loaders, and tables in memory, are sources like files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.prepared_folders import assert_is_corpus, entities

from evergram.data.corpus import Corpus
from evergram.data.prepared.sources.memory_sources import (
    corpus_of_kind,
    features_of,
    source_of_corpus,
)
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.errors import DataError

PAIRS = pa.table({"query": [3, 1, 3], "candidate": [1, 2, 4], "value": [0.5, 1.0, 2.0]})


def features(**columns: list[object]) -> pa.Table:
    return pa.table({"id": [1, 2, 3], **columns})


def test_a_corpus_gives_its_external_ids() -> None:
    (batch,) = source_of_corpus(Corpus.from_tables(PAIRS)).read()
    assert pa.Table.from_batches([batch]).to_pylist() == PAIRS.to_pylist()


@pytest.mark.parametrize("shared", [False, True])
def test_a_corpus_with_features_is_prepared_as_it_is(tmp_path: Path, shared: bool) -> None:
    tags = features(tags=[["a", "b"], [], ["c"]], kind=["x", None, "y"])
    corpus = Corpus.from_tables(PAIRS, tags, tags, shared_ids=shared)
    prepare(corpus, tmp_path / "out")
    assert_is_corpus(tmp_path / "out", corpus)


def test_shared_ids_have_one_feature_of_a_name() -> None:
    one, other = features(tags=["a", "b", "c"]), features(tags=["a", "b", "d"])
    corpus = Corpus.from_tables(PAIRS, one, other, shared_ids=True)
    with pytest.raises(DataError, match=r"'tags' differs"):
        features_of(corpus)
    more = features(tags=["a", "b", "c"], kind=["x", "y", "z"])
    with pytest.raises(DataError, match="give both sides all"):
        features_of(Corpus.from_tables(PAIRS, one, more, shared_ids=True))
    apart = Corpus.from_tables(PAIRS, one, features(kind=["x", "y", "z"]), shared_ids=True)
    assert set(features_of(apart)) == {"query", "candidate"}


def test_columns_of_a_table_are_named_by_role(tmp_path: Path) -> None:
    table = PAIRS.rename_columns(["user", "film", "stars"])
    columns = {"query": "user", "candidate": "film", "value": "stars"}
    summary = prepare(table, tmp_path / "out", PrepareSettings(columns=columns))
    assert list(summary.columns) == ["query", "candidate", "value"]
    with pytest.raises(DataError, match=r"no column 'candidate'; its columns are: user"):
        prepare(table, tmp_path / "other", PrepareSettings(columns={"query": "user"}))


def test_a_table_is_held_to_the_rules_of_a_corpus_in_memory(tmp_path: Path) -> None:
    table = pa.table({"query": pa.array(["a"], pa.string_view()), "candidate": [1], "price": [2]})
    summary = prepare(table, tmp_path / "out")
    assert (summary.interactions, summary.unread) == (1, ["price"])
    assert entities(tmp_path / "out", "query")["id"].to_pylist() == ["a"]
    with pytest.raises(DataError, match="query and candidate are both the column 'query'"):
        prepare(table, tmp_path / "other", PrepareSettings(columns={"candidate": "query"}))
    twice = pa.table([pa.array([1])] * 3, names=["query", "candidate", "query"])
    with pytest.raises(DataError, match="has two columns 'query'"):
        prepare(twice, tmp_path / "other")


def test_another_loader_reads_the_source(tmp_path: Path) -> None:
    lists = tmp_path / "lists.txt"
    lists.write_text("0 5 6\n1 6\n")
    prepare(lists, tmp_path / "out", PrepareSettings(kind="adjacency_list"))
    assert_is_corpus(tmp_path / "out", corpus_of_kind("adjacency_list", [lists], None))
    with pytest.raises(DataError, match=r"kind .*'nothing'; it is one of: table, movielens"):
        prepare(lists, tmp_path / "other", PrepareSettings(kind="nothing"))
    with pytest.raises(DataError, match="one file or folder"):
        prepare([lists, lists], tmp_path / "other", PrepareSettings(kind="adjacency_list"))
    assert not (tmp_path / "other").exists()


def test_shared_ids_are_not_appended_to_ids_of_their_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(Corpus.from_tables(PAIRS), out)
    with pytest.raises(DataError, match=r"ids of their own, and those of Corpus\(.* share theirs"):
        prepare(Corpus.from_tables(PAIRS, shared_ids=True), out, append=True)
    prepare(Corpus.from_tables(PAIRS), tmp_path / "shared", PrepareSettings(shared_ids=True))
    assert_is_corpus(tmp_path / "shared", Corpus.from_tables(PAIRS, shared_ids=True))
