"""Splits by hand and as properties; the rules and hashes that hold pairs out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.prepared import pairs_of

from evergram.data import split as rules
from evergram.data.corpus import Corpus, PairBlock, PairRule
from evergram.data.rolling_window import RollingWindow
from evergram.data.split import (
    HeldOut,
    PairHash,
    RowPairs,
    Split,
    TrainedPairs,
    among,
    below,
    given_split,
    known_pairs,
    pairs_outside,
    random_split,
    time_split,
    window_split,
)
from evergram.errors import DataError


def corpus(pairs: list[tuple[str, str]]) -> Corpus:
    query, candidate = zip(*pairs, strict=True)
    return Corpus.of(pa.table({"query": query, "candidate": candidate, "time": range(len(pairs))}))


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
        earlier = earlier.union([TrainedPairs.of_corpus(split.training, "salt")])
        assert len(earlier) == len(before)


GRID = [(str(q), str(c)) for q in range(40) for c in range(12)]


def test_more_rows_in_another_order_hold_out_the_same_pairs() -> None:
    more = [(str(q), str(c)) for q in reversed(range(60)) for c in range(12)]

    def held(rows: list[tuple[str, str]], salt: str = "salt") -> set[tuple[str, str]]:
        return set(rows) - trained(random_split(corpus(rows), share=0.3, held_out=HeldOut(salt)))

    assert held(GRID) == held(more) & set(GRID)
    assert held(GRID) != held(GRID, "another")
    assert abs(len(held(GRID)) / len(GRID) - 0.3) < 0.07


def test_impossible_shares_are_refused() -> None:
    data = corpus([("a", "x"), ("b", "y")])
    timeless = Corpus.of(pa.table({"query": [1], "candidate": [1]}))
    with pytest.raises(DataError, match=r"in \(0, 1\)"):
        random_split(data, share=1.0, held_out=HeldOut("salt"))
    for of, until, why in ((data, 0.4, "0 < share < until"), (timeless, 0.6, "column 'time'")):
        with pytest.raises(DataError, match=why):
            time_split(of, share=0.5, until=until, held_out=HeldOut("salt"))


def test_the_last_days_are_the_window() -> None:
    # Three interactions a day for ten days; the last ends at noon.
    start, day = 1_600_000_000, 86_400
    time = [start + i * day // 3 for i in range(30)]
    data = Corpus.of(
        pa.table({"query": ["q"] * 30, "candidate": [f"c{i}" for i in range(30)], "time": time})
    )
    split = window_split(data, last=RollingWindow.parse("2 days"), held_out=HeldOut("salt"))
    share = window_split(data, last=RollingWindow.parse("5 %"), held_out=HeldOut("salt"))
    assert len(share.training) == 28
    # Seven thirds of a day from the last one back, ends included.
    assert len(split.training) == 30 - 7
    with pytest.raises(DataError, match="has all interactions"):
        window_split(data, last=RollingWindow.parse("20 days"), held_out=HeldOut("salt"))
    with pytest.raises(DataError, match="has no interaction"):
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
    with pytest.raises(DataError, match="the same time"):
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


def test_a_query_has_left_what_it_has_not_met_however_often() -> None:
    # Each pair comes twice.
    split = random_split(corpus([*drawn(), *drawn()]), share=0.3, held_out=HeldOut("salt"))
    met = Counter(query for query, _ in trained(split))
    keys, size = split.training.queries.vocabulary.keys, len(split.training.candidates)
    selecting = [keys[row].as_py() for row in sorted(set(split.selection.query.tolist()))]
    assert split.candidates_left().tolist() == [size - met[query] for query in selecting]
    assert len(Split(split.training, RowPairs.none(), split.test, 0).candidates_left()) == 0


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


DRAWN = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=40)


def marked(corpus: Corpus, rule: PairRule, size: int) -> list[bool]:
    """What a rule marks, in blocks of `size`."""
    (whole,) = corpus.blocks()
    marks: list[bool] = []
    for start in range(0, len(corpus), size):
        piece = slice(start, start + size)
        value = None if whole.value is None else whole.value[piece]
        marks += rule(PairBlock(start, whole.query[piece], whole.candidate[piece], value)).tolist()
    return marks


@settings(max_examples=60, deadline=None)
@given(DRAWN, st.data(), st.integers(1, 9))
def test_what_arrives_is_held_out_as_a_loop_says(
    pairs: list[tuple[int, int]], data: st.DataObject, size: int
) -> None:
    past = data.draw(st.integers(0, len(pairs)))
    future = data.draw(st.integers(past, len(pairs)))
    known = {query for query, _ in pairs[:past]}
    times = Counter(query for query, _ in pairs[past:future])
    last = {query: place for place, (query, _) in enumerate(pairs[:future]) if place >= past}
    expected = [
        past <= place < future and (query in known or (last[query] == place and times[query] > 1))
        for place, (query, _) in enumerate(pairs)
    ]
    corpus = Corpus.of(pairs)
    assert marked(corpus, rules.arriving(corpus, past, future, PairHash("salt")), size) == expected
    assert marked(corpus, rules.first(past), size) == [p < past for p in range(len(pairs))]


@settings(max_examples=20, deadline=None)
@given(DRAWN, st.integers(1, 9))
def test_a_hash_marks_a_pair_alike_wherever_it_stands(
    pairs: list[tuple[int, int]], size: int
) -> None:
    corpus, other = Corpus.of(pairs), Corpus.of(pairs[::-1])
    salted = PairHash("salt")
    makers: list[Callable[[Corpus], PairRule]] = [
        lambda c: rules.hashed_below(c, salted, 0.4),
        lambda c: rules.half_of_queries(c, salted),
    ]
    for make in makers:
        one = marked(corpus, make(corpus), size)
        assert one == marked(other, make(other), 1)[::-1]
        assert len(set(zip(pairs, one, strict=True))) == len(set(pairs))


def test_a_smallest_value_needs_values() -> None:
    rule = rules.of_at_least(3)
    rated = Corpus.of({"query": [1, 1], "candidate": [1, 2], "value": [2, 3]})
    assert marked(rated, rule, 1) == [False, True]
    with pytest.raises(DataError, match="needs a column 'value'"):
        marked(Corpus.of([(1, 2)]), rule, 1)


def test_rules_are_combined_and_their_keys_differ() -> None:
    corpus, (a, b) = Corpus.of([(1, 2), (2, 2)]), (PairHash("a"), PairHash("b"))
    block = PairBlock(10, torch.tensor([0, 1, 2]), torch.tensor([5, 5, 6]))
    low = PairRule("low", lambda block: block.query < 2)
    five = PairRule("five", lambda block: block.candidate == 5)
    assert low(block).tolist() == [True, True, False]
    assert (~low)(block).tolist() == [False, False, True]
    assert (~low & five)(block).tolist() == [False, False, False]
    assert (~low | five)(block).tolist() == [True, True, True]
    made = [
        *(low, five, ~low, low & five, low | five),
        *(rules.first(1), rules.of_at_least(1.0)),
        *(rules.arriving(corpus, 0, 1, a), rules.arriving(corpus, 0, 2, a)),
        *(rules.hashed_below(corpus, one, 0.5) for one in (a, b)),
        rules.hashed_below(corpus, a, 0.25),
        *(rules.half_of_queries(corpus, one) for one in (a, b)),
    ]
    assert len({rule.key for rule in made}) == len(made)


TUPLES = st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 4)), max_size=12)


def row_pairs(tuples: list[tuple[int, int]]) -> RowPairs:
    rows = torch.tensor(tuples, dtype=torch.int64).reshape(-1, 2)
    return RowPairs(rows[:, 0], rows[:, 1])


@settings(max_examples=60, deadline=None)
@given(TUPLES, TUPLES)
def test_pairs_among_others_are_those_of_a_set_unknown_candidates_included(
    pairs: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    inside = among(row_pairs(pairs), row_pairs(others))
    assert inside.tolist() == [pair in set(others) for pair in pairs]
    kept = row_pairs(pairs).where(inside)
    assert len(kept) == int(inside.sum())


def test_pairs_outside_a_corpus_are_new_pairs_and_those_of_unknown_ids() -> None:
    asked = [("a", 1), ("b", 1), ("c", 1), ("b", 2), ("a", 9), ("b", 2)]
    query, candidate = (pa.array(ids) for ids in zip(*asked, strict=True))
    outside = pairs_outside(Corpus.of([("a", 1), ("a", 2), ("b", 2)]), query, candidate)
    assert list(zip(*(ids.to_pylist() for ids in outside), strict=True)) == [
        *(("b", 1), ("c", 1), ("a", 9))
    ]


HASHED = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=50)


def hashed(pairs: list[tuple[int, int]], salt: str = "salt") -> list[int]:
    query, candidate = zip(*pairs, strict=True)
    numbers: list[int] = PairHash(salt).of_pairs(pa.array(query), pa.array(candidate)).tolist()
    return numbers


def test_known_numbers() -> None:
    # By Python's own integers, outside this project: another number on any machine or in any
    # release would leak held-out pairs into training.
    assert hashed([(1, 2), (2, 1)], "shop") == [12200218504613259902, 2864958761507139146]


@settings(max_examples=50, deadline=None)
@given(HASHED)
def test_a_pair_has_its_number_whatever_stands_beside_it(pairs: list[tuple[int, int]]) -> None:
    assert hashed(pairs) == [hashed([pair])[0] for pair in pairs]
    corpus = Corpus.of(
        pa.table({"query": [q for q, _ in pairs], "candidate": [c for _, c in pairs]})
    )
    (block,) = corpus.blocks()
    assert PairHash("salt").of_blocks(corpus)(block).tolist() == hashed(pairs)


def test_an_id_counts_as_its_text_and_by_its_side() -> None:
    of = PairHash("salt").of_ids
    assert of(pa.array([17]), "query") == of(pa.array(["17"]), "query")
    assert of(pa.array(["17"]), "query") != of(pa.array(["017"]), "query")
    assert of(pa.array([17]), "query") != of(pa.array([17]), "candidate")
    assert hashed([(1, 2)]) != hashed([(2, 1)])
    assert hashed([(1, 2)], "a") != hashed([(1, 2)], "b")


def test_a_share_of_all_pairs_of_every_query_and_every_candidate_is_below() -> None:
    grid = [pa.array(ids) for ids in zip(*product(range(300), repeat=2), strict=True)]
    hashes, others = (PairHash(salt).of_pairs(*grid).reshape(300, 300) for salt in ("salt", "b"))
    for share in (0.05, 0.9):
        held = below(hashes, share)
        # Six standard deviations of a binomial share: of all pairs, and of a row's or column's 300.
        deviation = (share * (1 - share)) ** 0.5
        assert abs(held.mean() - share) < 6 * deviation / 300
        for axis in (0, 1):
            assert np.abs(held.mean(axis) - share).max() < 6 * deviation / 300**0.5
        # What is held out by one salt says nothing of what is by another.
        assert abs((held & below(others, share)).mean() - share**2) < 0.01


@settings(max_examples=50, deadline=None)
@given(HASHED, HASHED)
def test_trained_pairs_are_a_set(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> None:
    def of(pairs: list[tuple[int, int]]) -> np.ndarray:
        return np.array(hashed(pairs), dtype=np.uint64)

    first, second = TrainedPairs.of(of(one)), TrainedPairs.of(of(two))
    asked = [*one, *two]
    assert first.has(of(asked)).tolist() == [pair in set(one) for pair in asked]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "MARKS_AT_ONCE", 2)
        both = first.union([second])
    assert both.marks.tolist() == sorted({*first.marks.tolist(), *second.marks.tolist()})
    assert len(both) == len({*one, *two})
    rest = first.without(second)
    assert rest.has(of(asked)).tolist() == [pair in set(one) - set(two) for pair in asked]


def test_a_share_or_a_length_of_time_is_read() -> None:
    for text, share, seconds in [
        ("5 %", 0.05, None),
        ("12.5%", 0.125, None),
        ("7 days", None, 604_800),
        ("1 day", None, 86_400),
        ("36 hours", None, 129_600),
        ("2 weeks", None, 1_209_600),
    ]:
        window = RollingWindow.parse(text)
        assert (window.share, window.seconds) == (share, seconds)
    for text in ["", "5", "0 %", "100 %", "0 days", "-1 days", "7 moons", "5 %%"]:
        with pytest.raises(ValueError, match=r"split\.last is"):
            RollingWindow.parse(text)


@pytest.mark.parametrize("units", [1, 10**3, 10**6, 10**9])
def test_a_day_is_a_day_in_every_unit(units: int) -> None:
    # The last at hour 99: hours 75 to 99 are in the window, 75 before it.
    times = (1_500_000_000 + np.arange(100) * 3600) * units
    corpus = Corpus.of({"query": times, "candidate": times, "time": times})
    assert RollingWindow.parse("1 day").begins(corpus) == 75


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (1, "99, which is not between 1980 and 2100"),
        # Microseconds of 1970, as dates have them, are in number milliseconds of today.
        (36 * 10**9, "the earliest time here is 0, which in milliseconds, as"),
    ],
)
def test_times_that_are_no_dates_take_a_share_alone(unit: int, message: str) -> None:
    times = np.arange(100) * unit
    corpus = Corpus.of({"query": times, "candidate": times, "time": times})
    assert RollingWindow.parse("5 %").begins(corpus) == 95
    with pytest.raises(DataError, match=message):
        RollingWindow.parse("7 days").begins(corpus)
