"""Rules that hold pairs out, hashes of pairs, rolling windows, and pairs as rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data import holdout_rules as rules
from evergram.data.corpus import Corpus, PairBlock, PairRule
from evergram.data.pair_hash import PairHash, TrainedPairs, below
from evergram.data.rolling_window import RollingWindow
from evergram.data.split import RowPairs, among, pairs_outside
from evergram.errors import DataError

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=40)


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
@given(PAIRS, st.data(), st.integers(1, 9))
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
    assert all(marked(corpus, rules.everything(), size))


@settings(max_examples=20, deadline=None)
@given(PAIRS, st.integers(1, 9))
def test_a_hash_marks_a_pair_alike_wherever_it_stands(
    pairs: list[tuple[int, int]], size: int
) -> None:
    corpus, other = Corpus.of(pairs), Corpus.of(pairs[::-1])
    salted = PairHash("salt")
    makers: list[Callable[[Corpus], PairRule]] = [
        lambda c: rules.hashed_below(c, salted, 0.4),
        lambda c: rules.of_half_the_queries(c, salted),
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
        *(rules.everything(), rules.first(1), rules.of_at_least(1.0)),
        *(rules.arriving(corpus, 0, 1, a), rules.arriving(corpus, 0, 2, a)),
        *(rules.hashed_below(corpus, one, 0.5) for one in (a, b)),
        rules.hashed_below(corpus, a, 0.25),
        *(rules.of_half_the_queries(corpus, one) for one in (a, b)),
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
    corpus = Corpus.from_tables(pa.table({"query": ["a", "a", "b"], "candidate": [1, 2, 2]}))
    asked = [("a", 1), ("b", 1), ("c", 1), ("b", 2), ("a", 9), ("b", 2)]
    query, candidate = (pa.array(ids) for ids in zip(*asked, strict=True))
    outside = zip(
        *(ids.to_pylist() for ids in pairs_outside(corpus, query, candidate)), strict=True
    )
    assert list(outside) == [("b", 1), ("c", 1), ("a", 9)]


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
    corpus = Corpus.from_tables(
        pa.table({"query": [q for q, _ in pairs], "candidate": [c for _, c in pairs]})
    )
    assert PairHash("salt").of_corpus(corpus).tolist() == hashed(pairs)


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
    assert len(first.union([second])) == len({*one, *two})
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
