"""A mapped corpus answers as the same corpus in memory, and its splits are the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.prepared import prepared, write_prepared
from tests.support.resident import on_linux, resident_bytes
from tests.support.streamed import generated

from evergram.data.corpus import Corpus
from evergram.data.holdout import rules
from evergram.data.pair_hash import PairHash, TrainedPairs
from evergram.data.prepared import mapped_corpus, pair_index
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.prepared.prepared_corpus import load_prepared
from evergram.data.rolling_window import RollingWindow
from evergram.data.split import (
    HeldOut,
    Split,
    given_split,
    known_pairs,
    random_split,
    time_split,
    window_split,
)
from evergram.errors import DataError
from evergram.evaluation.relevance import relevance_of
from evergram.evaluation.relevance import test_relevance as relevance_of_test
from evergram.training.checkpoints.run_identity import corpus_digest


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_corpus, "PAIRS_AT_ONCE", 100)
    monkeypatch.setattr(pair_index, "BUCKET", 64)


def assert_same(one: Corpus, other: Corpus) -> None:
    if isinstance(other, MappedCorpus):
        assert torch.equal(one.counts("query"), other.counts("query"))
        assert torch.equal(one.counts("candidate"), other.counts("candidate"))
        assert one.repeats == other.repeats
        other = other.in_memory()
    assert one.interactions.equals(other.interactions)
    for a, b in ((one.queries, other.queries), (one.candidates, other.candidates)):
        assert a.vocabulary.same_keys(b.vocabulary)
        assert list(a.features) == list(b.features)
        for name, feature in a.features.items():
            assert feature.vocabulary.same_keys(b.features[name].vocabulary)
            assert torch.equal(feature.offsets, b.features[name].offsets)
            assert torch.equal(feature.indices, b.features[name].indices)


def assert_same_split(one: Split, other: Split) -> None:
    assert_same(one.training, other.training)
    for name in ("selection", "test"):
        a, b = getattr(one, name), getattr(other, name)
        assert torch.equal(a.query, b.query)
        assert torch.equal(a.candidate, b.candidate)
    for name in ("unknown_queries", "trained_before", "in_training", "untested"):
        assert getattr(one, name) == getattr(other, name)
    first, second = (
        (relevance_of(s.training, s.selection), relevance_of_test(s)) for s in (one, other)
    )
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.queries, b.queries)
        assert torch.equal(a.targets, b.targets)
        assert torch.equal(a.seen_offsets, b.seen_offsets)
        for start, end in zip(a.seen_offsets[:-1], a.seen_offsets[1:], strict=True):
            assert torch.equal(a.seen[start:end].sort().values, b.seen[start:end].sort().values)


HELD = HeldOut("salt")
TRAINED = HeldOut("salt", TrainedPairs.of_corpus(generated(200, seed=3), "salt"))
PAPER = HeldOut("salt", selection="paper")
TEST = pa.table({"query": [1, 2, 3, 999, 5], "candidate": [4, 5, 6, 7, 999]})
SPLITS: list[Callable[[Corpus], Split]] = [
    lambda c: random_split(c, share=0.2, held_out=HELD),
    lambda c: random_split(c, share=0.3, held_out=TRAINED),
    lambda c: random_split(c, share=0.3, held_out=PAPER),
    lambda c: time_split(c, share=0.7, until=0.9, held_out=HELD),
    lambda c: time_split(c, share=0.5, until=1, held_out=PAPER),
    lambda c: window_split(c, last=RollingWindow.parse("10 %"), held_out=HELD),
    lambda c: given_split(c, TEST, share=0.1, held_out=HELD),
]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("parts", [(), (0.31, 0.72)])
def test_splits_are_those_of_the_corpus_in_memory(
    split: Callable[[Corpus], Split], parts: tuple[float, ...], tmp_path: Path
) -> None:
    corpus = generated(1500)
    one, other = split(corpus), split(prepared(corpus, tmp_path / "p", *parts))
    assert_same_split(one, other)
    assert isinstance(other.training, MappedCorpus)
    assert (one.final is None) == (other.final is None)
    if one.final is not None and other.final is not None:
        assert_same_split(one.final(), other.final())


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from("abxy"), st.just(1.0)), min_size=8
    ),
    shared=st.booleans(),
    data=st.data(),
)
def test_any_corpus_is_restricted_as_in_memory(
    rows: list[tuple[str, str, float]],
    shared: bool,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    corpus = Corpus.of(rows, shared_ids=shared)
    mapped = prepared(corpus, tmp_path_factory.mktemp("p") / "p", 0.5)
    assert_same(corpus, mapped)
    query, candidate = torch.randint(-1, 4, (2, 50), generator=torch.Generator().manual_seed(1))
    query, candidate = (
        query.clamp(max=len(corpus.queries) - 1),
        candidate.clamp(max=len(corpus.candidates) - 1),
    )
    assert torch.equal(corpus.has_pairs(query, candidate), mapped.has_pairs(query, candidate))
    number = data.draw(st.integers(0, len(rows)))
    for rule in (rules.first(number), ~rules.first(number)):
        one, other = corpus.where(rule), mapped.where(rule)
        assert_same(one, other)
        assert other.shared_ids == shared
        if len(one):
            assert one.repeats == other.repeats
            again = rules.first(max(1, len(one) // 2))
            assert_same(one.where(again), other.where(again))


def test_features_and_shared_keys_stay(tmp_path: Path) -> None:
    features = {"id": [1, 2, 3], "brand": [["a", "b"], [], ["b"]]}
    corpus = Corpus.of([(1, 3), (2, 3), (1, 2), (3, 1)], query_features=features)
    mapped = prepared(corpus, tmp_path / "p")
    assert_same(corpus, mapped)
    assert_same(corpus.where(rules.first(2)), mapped.where(rules.first(2)))


def test_hashes_and_marks_of_trained_pairs_are_the_same(tmp_path: Path) -> None:
    corpus = generated(500)
    mapped = prepared(corpus, tmp_path / "p", 0.4)
    hashes = PairHash("s").of_corpus(corpus)
    assert (hashes == PairHash("s").of_corpus(mapped)).all()
    marks = TrainedPairs.of(hashes).marks
    assert (marks == TrainedPairs.of_corpus(mapped, "s").marks).all()
    assert (marks == TrainedPairs.of_corpus(corpus, "s").marks).all()


def test_times_are_searched_as_in_memory(tmp_path: Path) -> None:
    corpus = generated(500)
    mapped = prepared(corpus, tmp_path / "p", 0.4, 0.8)
    assert mapped.time_span == corpus.time_span == (0, 166)
    for time in (-1.0, 0.0, 0.5, 66.0, 66.5, 165.9, 166.0, 167.0):
        assert mapped.before(time) == corpus.before(time)


def test_what_is_derived_is_written_once_and_may_be_removed(tmp_path: Path) -> None:
    corpus = generated(500)
    mapped = prepared(corpus, tmp_path / "p")
    rule = rules.hashed_below(mapped, PairHash("s"), 0.5)
    part = mapped.where(rule)
    written = {p: p.stat().st_mtime_ns for p in mapped.cache.rglob("*.npy")}
    assert written
    load_prepared(tmp_path / "p").where(rule)
    assert {p: p.stat().st_mtime_ns for p in mapped.cache.rglob("*.npy")} == written
    before = part.column("query")
    shutil.rmtree(tmp_path / "p" / ".splits")
    assert torch.equal(part.column("query"), before)
    assert part.repeats == corpus.where(rule).repeats
    assert_same(corpus.where(rule), load_prepared(tmp_path / "p").where(rule))


def test_derived_files_of_older_data_are_removed(tmp_path: Path) -> None:
    first = prepared(generated(500), tmp_path / "p")
    first.where(rules.first(9))
    shutil.rmtree(tmp_path / "p" / "parts")
    write_prepared(generated(600), tmp_path / "p")
    assert first.cache.is_dir()
    assert load_prepared(tmp_path / "p").cache != first.cache
    assert not first.cache.exists()


def test_a_digest_is_that_of_the_content(tmp_path: Path) -> None:
    mapped = prepared(generated(500), tmp_path / "p")
    other = prepared(generated(500, seed=1), tmp_path / "q")
    made = [mapped, other, mapped.where(rules.first(9)), mapped.where(rules.first(8))]
    assert len({corpus_digest(corpus) for corpus in made}) == 4
    assert corpus_digest(mapped) == corpus_digest(load_prepared(tmp_path / "p"))


def test_too_much_for_memory_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = prepared(generated(500), tmp_path / "p")
    monkeypatch.setattr(mapped_corpus, "WHOLE", 499)
    with pytest.raises(DataError, match="'query' of all 500 interactions in memory"):
        mapped.column("query")
    with pytest.raises(DataError, match="prepared data give it up to 499"):
        mapped.restrict(torch.arange(3))
    # What training needs does not ask for it.
    split = random_split(mapped, share=0.2, held_out=HELD)
    assert len(known_pairs(split)) > 0
    assert split.training.repeats > 0


def test_it_is_a_value_like_another_corpus(tmp_path: Path) -> None:
    mapped = prepared(generated(500), tmp_path / "p")
    assert replace(mapped, origin="recipe").origin == "recipe"
    assert replace(mapped, origin="recipe").repeats == mapped.repeats
    assert repr(mapped) == repr(generated(500))
    with pytest.raises(DataError, match="no column 'price'"):
        mapped.column("price")


@pytest.mark.parametrize("row", [-1, 0x7FFFFFFF])
def test_rows_outside_of_their_side_are_refused(row: int, tmp_path: Path) -> None:
    mapped = prepared(generated(500), tmp_path / "p")
    part = mapped.where(rules.first(400))
    assert isinstance(part, MappedCorpus)
    damaged = [mapped.columns[0]["candidate"].path, part.columns[0]["candidate"].path]
    for path, remedy in zip(damaged, ("Prepare the data again", "Remove .*splits"), strict=True):
        corpus: Corpus = load_prepared(tmp_path / "p")
        corpus = corpus if path == damaged[0] else corpus.where(rules.first(400))
        before = np.load(path)
        rows = before.copy()
        rows[7] = row
        np.save(path, rows)
        reads: list[Callable[[Corpus], object]] = [
            lambda c: c.column("candidate"),
            lambda c: list(c.blocks()),
            lambda c: c.where(rules.first(300)),
            lambda c: c.repeats,
        ]
        for read in reads:
            with pytest.raises(DataError, match=f"'candidate' .* names the rows .*{row}.*{remedy}"):
                read(corpus)
        np.save(path, before)


@on_linux
def test_what_was_read_does_not_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_corpus, "PAIRS_AT_ONCE", 10_000)
    monkeypatch.setattr(pair_index, "BUCKET", 1 << 20)
    mapped = prepared(generated(400_000), tmp_path / "p", 0.4)
    split = random_split(mapped, share=0.2, held_out=HELD)
    part = split.training
    size = resident_bytes(tmp_path / "p")
    most = 0
    for block in part.blocks():
        assert int(part.interactions.slice(block.start, len(block))["time"][0].as_py()) >= 0
        most = max(most, resident_bytes(tmp_path / "p"))
    # Of 320,000 pairs each has four columns of 4 bytes and one of 8; the kernel maps 16 pages and
    # more around the one that is read.
    assert most - size < 4 << 20 < 320_000 * 24
    part.pairs_of(torch.arange(60))
    part.has_pairs(torch.arange(40), torch.arange(40))
    part.column("query")
    assert resident_bytes(tmp_path / "p") <= size < 1 << 20
