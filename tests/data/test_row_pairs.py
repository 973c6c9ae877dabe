"""Pairs as rows of a corpus, against sets of tuples."""

from __future__ import annotations

import pyarrow as pa
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.corpus import Corpus
from evergram.data.row_pairs import RowPairs, among, pairs_outside

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


def test_no_pairs_are_among_none() -> None:
    assert len(RowPairs.none()) == 0
    assert among(RowPairs.none(), row_pairs([(0, 1)])).tolist() == []
    assert among(row_pairs([(0, 1)]), RowPairs.none()).tolist() == [False]


def test_pairs_outside_a_corpus_are_new_pairs_and_those_of_unknown_ids() -> None:
    corpus = Corpus.from_tables(pa.table({"query": ["a", "a", "b"], "candidate": [1, 2, 2]}))
    asked = [("a", 1), ("b", 1), ("c", 1), ("b", 2), ("a", 9), ("b", 2)]
    query, candidate = (pa.array(ids) for ids in zip(*asked, strict=True))
    outside = zip(
        *(ids.to_pylist() for ids in pairs_outside(corpus, query, candidate)), strict=True
    )
    assert list(outside) == [("b", 1), ("c", 1), ("a", 9)]
