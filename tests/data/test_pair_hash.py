"""Hashes of pairs: uniform, and a function of ids and salt alone; the set of trained pairs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.corpus import Corpus
from evergram.data.pair_hash import PairHash, TrainedPairs, below

PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=50)


def hashed(pairs: list[tuple[int, int]], salt: str = "salt") -> list[int]:
    query, candidate = zip(*pairs, strict=True)
    numbers: list[int] = PairHash(salt).of_pairs(pa.array(query), pa.array(candidate)).tolist()
    return numbers


def test_known_numbers() -> None:
    # Written down once: another number on any machine or in any release would leak held-out pairs
    # into training.
    assert hashed([(1, 2), (2, 1)], "shop") == KNOWN


# By Python's own integers, outside this project.
KNOWN = [12200218504613259902, 2864958761507139146]


@settings(max_examples=50, deadline=None)
@given(PAIRS)
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


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_a_share_of_all_pairs_of_every_query_and_every_candidate_is_below(share: float) -> None:
    grid = [(q, c) for q in range(300) for c in range(300)]
    query, candidate = zip(*grid, strict=True)
    hashes = PairHash("salt").of_pairs(pa.array(query), pa.array(candidate)).reshape(300, 300)
    held = below(hashes, share)
    # Six standard deviations of a binomial share: of all pairs, and of a row's or column's 300.
    deviation = (share * (1 - share)) ** 0.5
    assert abs(held.mean() - share) < 6 * deviation / 300
    for axis in (0, 1):
        assert np.abs(held.mean(axis) - share).max() < 6 * deviation / 300**0.5
    # What is held out by one salt says nothing of what is by another.
    other = below(PairHash("b").of_pairs(pa.array(query), pa.array(candidate)), share)
    both = (held.ravel() & other).mean()
    assert abs(both - share**2) < 0.01


@settings(max_examples=50, deadline=None)
@given(PAIRS, PAIRS)
def test_trained_pairs_are_a_set(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> None:
    def of(pairs: list[tuple[int, int]]) -> np.ndarray:
        return np.array(hashed(pairs), dtype=np.uint64)

    first, second = TrainedPairs.of(of(one)), TrainedPairs.of(of(two))
    asked = [*one, *two]
    assert first.has(of(asked)).tolist() == [pair in set(one) for pair in asked]
    assert len(first.union([second])) == len({*one, *two})
    rest = first.without(second)
    assert rest.has(of(asked)).tolist() == [pair in set(one) - set(two) for pair in asked]


def test_no_pair_is_known_where_none_was_trained() -> None:
    assert not TrainedPairs().has(np.array([5, 6], dtype=np.uint64)).any()
