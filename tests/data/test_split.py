"""Splits of the growing corpus, by hand and as properties, and the split of a last training."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.prepared import pairs_of

from evergram.data.corpus import Corpus
from evergram.data.pair_hash import PairHash, TrainedPairs
from evergram.data.rolling_window import RollingWindow
from evergram.data.split import (
    HeldOut,
    RowPairs,
    Split,
    given_split,
    known_pairs,
    random_split,
    time_split,
    window_split,
)
from evergram.errors import DataError


def corpus(pairs: list[tuple[str, str]]) -> Corpus:
    query, candidate = zip(*pairs, strict=True)
    return Corpus.from_tables(
        pa.table({"query": query, "candidate": candidate, "time": range(len(pairs))})
    )


Names = set[tuple[str, str | None]]


def named(split: Split, pairs: RowPairs) -> Names:
    queries = split.training.queries.vocabulary.keys.to_pylist()
    candidates = [*split.training.candidates.vocabulary.keys.to_pylist(), None]
    return {(queries[q], candidates[c]) for q, c in zip(pairs.query, pairs.candidate, strict=True)}


def known(split: Split, pairs: RowPairs) -> Names:
    """By external ids; what training does not know is left out."""
    return {pair for pair in named(split, pairs) if pair[1] is not None}


def trained(split: Split) -> Names:
    return set(pairs_of(split.training))


def test_the_growing_corpus_by_hand() -> None:
    past = [("old", "a"), ("old", "b"), ("x", "a"), ("x", "b")]
    future = [("old", "c"), ("once", "a"), ("new", "a"), ("new", "b"), ("new", "d")]
    split = time_split(
        corpus([*past, *future, ("late", "a")]),
        share=0.4,
        until=0.9,
        held_out=HeldOut("salt", selection="paper"),
    )
    # A new query's only edge, or all but its last, join training.
    assert pairs_of(split.training) == [*past, ("once", "a"), ("new", "a"), ("new", "b")]
    # An existing query's, and a new one's last, are held out; c and d were never trained.
    assert named(split, split.test) == {("old", None), ("new", None)}
    assert split.unknown_queries == 0


PAIRS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from("uvwxyz")), min_size=10, max_size=60
)


@settings(max_examples=60, deadline=None)
@given(PAIRS, st.text(max_size=5))
def test_nothing_is_both_trained_and_tested(pairs: list[tuple[str, str]], salt: str) -> None:
    data = corpus(pairs)
    for split in (
        random_split(data, share=0.3, held_out=HeldOut(salt)),
        time_split(data, share=0.5, until=0.8, held_out=HeldOut(salt)),
    ):
        for part in (split.selection, split.test):
            assert not trained(split) & named(split, part)
        # Strict: no query both selects the epoch and is reported.
        assert not set(split.selection.query.tolist()) & set(split.test.query.tolist())
    # A split by time never looks ahead.
    assert int(split.training.column("time").max()) < round(0.8 * len(pairs))


def test_a_published_split_by_external_ids() -> None:
    data = corpus([("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")] * 5)
    test = pa.table({"query": ["a", "b", "nobody"], "candidate": ["x", "never seen", "x"]})
    split = given_split(data, test, share=0.1, held_out=HeldOut("salt"))
    # (a, x) was trained on: it tests nothing.
    assert named(split, split.test) == {("b", None)}
    assert split.unknown_queries == 1


Grown = st.lists(
    st.tuples(PAIRS, st.sampled_from(["random", "time", "given"]), st.floats(0.1, 0.6)),
    min_size=2,
    max_size=4,
)


@settings(max_examples=25, deadline=None)
@given(Grown)
def test_no_version_is_tested_on_pairs_that_an_earlier_one_was_trained_on(
    versions: list[tuple[list[tuple[str, str]], str, float]],
) -> None:
    # However the data changes from version to version, and by whichever split.
    before: Names = set()
    earlier = TrainedPairs()
    for pairs, kind, share in versions:
        data, held_out = corpus(pairs), HeldOut("salt", earlier)
        if kind == "random":
            split = random_split(data, share=share, held_out=held_out)
        elif kind == "time":
            split = time_split(data, share=share, until=share + 0.3, held_out=held_out)
        else:
            test = pa.table({"query": list("abcdef"), "candidate": list("uvwxyz")})
            split = given_split(data, test, share=share, held_out=held_out)
        assert not before & named(split, split.test)
        before |= trained(split)
        earlier = earlier.union([TrainedPairs.of(PairHash("salt").of_corpus(split.training))])
        assert len(earlier) == len(before)


GRID = [(str(q), str(c)) for q in range(40) for c in range(12)]


def test_more_rows_in_another_order_hold_out_the_same_pairs() -> None:
    more = [(str(q), str(c)) for q in reversed(range(60)) for c in range(12)]

    def held(rows: list[tuple[str, str]], salt: str = "salt") -> set[tuple[str, str]]:
        return set(rows) - trained(random_split(corpus(rows), share=0.3, held_out=HeldOut(salt)))

    assert held(GRID) == held(more) & set(GRID)
    assert held(GRID) != held(GRID, "another")
    assert abs(len(held(GRID)) / len(GRID) - 0.3) < 0.07


def test_queries_either_select_or_are_tested() -> None:
    splits = [
        random_split(corpus(rows), share=0.3, held_out=HeldOut("salt"))
        for rows in (GRID, GRID[::-1], GRID[: len(GRID) // 2])
    ]
    selecting = [{q for q, _ in named(s, s.selection)} for s in splits]
    testing = [{q for q, _ in named(s, s.test)} for s in splits]
    assert selecting[0] == selecting[1]
    assert selecting[2] <= selecting[0]
    assert not set().union(*selecting) & set().union(*testing)


def test_impossible_shares_are_refused() -> None:
    data = corpus([("a", "x"), ("b", "y")])
    with pytest.raises(DataError, match=r"in \(0, 1\)"):
        random_split(data, share=1.0, held_out=HeldOut("salt"))
    with pytest.raises(DataError, match="0 < share < until"):
        time_split(data, share=0.5, until=0.4, held_out=HeldOut("salt"))
    timeless = Corpus.from_tables(pa.table({"query": [1], "candidate": [1]}))
    with pytest.raises(DataError, match="column 'time'"):
        time_split(timeless, share=0.5, until=0.6, held_out=HeldOut("salt"))


def test_the_last_days_are_the_window() -> None:
    # Three interactions a day for ten days; the last ends at noon.
    start, day = 1_600_000_000, 86_400
    time = [start + i * day // 3 for i in range(30)]
    data = Corpus.from_tables(
        pa.table({"query": ["q"] * 30, "candidate": [f"c{i}" for i in range(30)], "time": time})
    )
    split = window_split(data, last=RollingWindow.parse("2 days"), held_out=HeldOut("salt"))
    share = window_split(data, last=RollingWindow.parse("5 %"), held_out=HeldOut("salt"))
    assert len(share.training) == 28
    # Seven thirds of a day from the last one back, ends included.
    assert len(split.training) == 30 - 7
    with pytest.raises(DataError, match="holds all interactions"):
        window_split(data, last=RollingWindow.parse("20 days"), held_out=HeldOut("salt"))
    with pytest.raises(DataError, match="holds no interaction"):
        window_split(data, last=RollingWindow.parse("1 %"), held_out=HeldOut("salt"))


def test_a_split_by_time_does_not_depend_on_the_order_of_rows_of_one_day() -> None:
    days = [f"2020-01-{day:02}" for day in range(1, 11) for _ in range(7)]
    rows = [
        (f"q{i % 9}" if i < 50 else f"new{i % 3}", i * 5 % 13, 1.0, d) for i, d in enumerate(days)
    ]
    splits = []
    for order in (rows, rows[::-1]):
        data = Corpus.of(order)
        for split in (
            time_split(data, share=0.71, until=0.96, held_out=HeldOut("salt")),
            window_split(data, last=RollingWindow.parse("25 %"), held_out=HeldOut("salt")),
        ):
            parts = [named(split, part) for part in (split.test, split.selection)]
            splits.append((sorted(pairs_of(split.training)), *parts))
    assert splits[:2] == splits[2:]
    same = Corpus.of([(q, c, 1.0, 5) for q, c, _, _ in rows])
    with pytest.raises(DataError, match="one time"):
        time_split(same, share=0.5, until=1, held_out=HeldOut("salt"))


def drawn(count: int = 600) -> list[tuple[str, str]]:
    draw = random.Random(1)
    return [(f"q{draw.randrange(30)}", f"c{draw.randrange(90)}") for _ in range(count)]


def last(split: Split) -> Split:
    assert split.final is not None
    return split.final()


def test_a_last_training_takes_all_that_is_not_test() -> None:
    pairs = drawn()
    data = corpus(pairs)
    for split, seen in (
        (random_split(data, share=0.3, held_out=HeldOut("salt")), len(pairs)),
        (time_split(data, share=0.5, until=0.8, held_out=HeldOut("salt")), round(0.8 * len(pairs))),
    ):
        final = last(split)
        test = known(final, final.test)
        assert known(split, split.test) <= test
        assert trained(final) >= trained(split) | known(split, split.selection)
        assert not trained(final) & test
        # Nothing from after the interval.
        assert trained(final) <= set(pairs[:seen])
        assert len(final.training) > len(split.training)
        assert not len(final.selection)
        # What selection alone knew can be listed now: no more misses than before.
        assert (final.test.candidate < 0).sum() <= (split.test.candidate < 0).sum()


def test_a_published_test_file_is_tested_and_nothing_else() -> None:
    pairs = drawn()
    new = sorted({(f"q{i % 30}", f"c{i % 90}") for i in range(300)} - set(pairs))
    # Pairs of the training part that the test file repeats test nothing, whoever saw them.
    query, candidate = zip(*new, *pairs[:200], ("nobody", "c1"), ("q1", "new"), strict=True)
    test = pa.table({"query": query, "candidate": candidate})
    split = given_split(corpus(pairs), test, share=0.4, held_out=HeldOut("salt"))
    final = last(split)
    assert known(split, split.test) <= known(final, final.test) == set(new)
    assert trained(final) == set(pairs)
    assert len(final.training) == len(pairs)
    assert (int((final.test.candidate < 0).sum()), final.unknown_queries) == (1, 1)
    # No test list holds what chose the epoch.
    assert known(split, known_pairs(split)) == trained(split) | known(split, split.selection)
    assert known(final, known_pairs(final)) == set(pairs)
