"""The growing corpus, by hand and as properties."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.corpus import Corpus
from evergram.data.split import Pairs, Split, given_split, random_split, time_split
from evergram.errors import DataError


def corpus(pairs: list[tuple[str, str]]) -> Corpus:
    query, candidate = zip(*pairs, strict=True)
    return Corpus.from_tables(
        pa.table({"query": query, "candidate": candidate, "time": range(len(pairs))})
    )


def named(split: Split, pairs: Pairs) -> set[tuple[str, str | None]]:
    queries = split.training.queries.vocabulary.keys.to_pylist()
    candidates = [*split.training.candidates.vocabulary.keys.to_pylist(), None]
    return {(queries[q], candidates[c]) for q, c in zip(pairs.query, pairs.candidate, strict=True)}


def trained(split: Split) -> list[tuple[str, str]]:
    queries = split.training.queries.vocabulary.keys.to_pylist()
    candidates = split.training.candidates.vocabulary.keys.to_pylist()
    both = zip(split.training.column("query"), split.training.column("candidate"), strict=True)
    return [(queries[q], candidates[c]) for q, c in both]


def test_the_growing_corpus_by_hand() -> None:
    found = time_split(
        corpus(
            [
                ("old", "a"),
                ("old", "b"),
                ("x", "a"),
                ("x", "b"),
                # from here on the future
                ("old", "c"),
                ("once", "a"),
                ("new", "a"),
                ("new", "b"),
                ("new", "d"),
                # after `until`
                ("late", "a"),
            ]
        ),
        share=0.4,
        until=0.9,
        seed=0,
        selection="paper",
    )
    # A new query's only edge, or all but its last, join training.
    assert trained(found) == [
        ("old", "a"),
        ("old", "b"),
        ("x", "a"),
        ("x", "b"),
        ("once", "a"),
        ("new", "a"),
        ("new", "b"),
    ]
    # An existing query's, and a new one's last, are held out; c and d were never trained.
    assert named(found, found.test) == {("old", None), ("new", None)}
    assert found.unknown_queries == 0


PAIRS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from("uvwxyz")), min_size=10, max_size=60
)


@settings(max_examples=60, deadline=None)
@given(PAIRS, st.integers(0, 100))
def test_nothing_is_both_trained_and_tested(pairs: list[tuple[str, str]], seed: int) -> None:
    data = corpus(pairs)
    for split in (
        random_split(data, share=0.3, seed=seed),
        time_split(data, share=0.5, until=0.8, seed=seed),
    ):
        known = set(trained(split))
        for part in (split.selection, split.test):
            assert not known & named(split, part)
        # Strict: no query both selects the epoch and is reported.
        assert not set(split.selection.query.tolist()) & set(split.test.query.tolist())


@settings(max_examples=30, deadline=None)
@given(PAIRS)
def test_time_never_looks_ahead(pairs: list[tuple[str, str]]) -> None:
    data = corpus(pairs)
    split = time_split(data, share=0.5, until=0.8, seed=0)
    assert int(split.training.column("time").max()) < round(0.8 * len(pairs))


def test_a_published_split_by_external_ids() -> None:
    data = corpus([("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")] * 5)
    test = pa.table({"query": ["a", "b", "nobody"], "candidate": ["x", "never seen", "x"]})
    split = given_split(data, test, share=0.1, seed=0)
    # (a, x) was trained on: it tests nothing.
    assert named(split, split.test) == {("b", None)}
    assert split.unknown_queries == 1


def test_the_same_seed_gives_the_same_split() -> None:
    data = corpus([(str(i), str(i % 7)) for i in range(50)] * 2)
    one, two = (random_split(data, share=0.3, seed=4) for _ in range(2))
    other = random_split(data, share=0.3, seed=5)
    assert torch.equal(one.test.query, two.test.query)
    assert not torch.equal(one.training.column("query"), other.training.column("query"))


def test_impossible_shares_are_refused() -> None:
    data = corpus([("a", "x"), ("b", "y")])
    with pytest.raises(DataError, match=r"in \(0, 1\)"):
        random_split(data, share=1.0, seed=0)
    with pytest.raises(DataError, match="0 < share < until"):
        time_split(data, share=0.5, until=0.4, seed=0)
    timeless = Corpus.from_tables(pa.table({"query": [1], "candidate": [1]}))
    with pytest.raises(DataError, match="column 'time'"):
        time_split(timeless, share=0.5, until=0.6, seed=0)
