"""A corpus maps ids to rows, and keeps order, repeats and features."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.corpus import Corpus


def corpus(query: list[Any], candidate: list[Any], **columns: list[Any]) -> Corpus:
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate, **columns}))


@pytest.mark.parametrize(
    "ids",
    [[7, 3, 7], ["b", "a", "b"], pa.array(["b", "a", "b"]).dictionary_encode()],
    ids=["integers", "strings", "dictionary"],
)
def test_ids_of_any_type_get_rows_by_first_appearance(ids: Any) -> None:
    data = Corpus.from_tables(pa.table({"query": ids, "candidate": [1, 2, 3]}))
    assert data.column("query").tolist() == [0, 1, 0]
    assert len(data.queries) == 2


def test_time_orders_and_ties_keep_the_files_order() -> None:
    data = corpus([1, 2, 3, 4], [10, 11, 12, 13], time=[5, 1, 5, 1])
    assert data.queries.vocabulary.keys.to_pylist() == [2, 4, 1, 3]
    assert data.column("time").tolist() == [1, 1, 5, 5]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_the_order_is_stable(times: list[int]) -> None:
    data = corpus(list(range(len(times))), [0] * len(times), time=times)
    # Query i is line i: Python's sort is stable too, and another algorithm.
    expected = sorted(range(len(times)), key=lambda i: times[i])
    assert data.queries.vocabulary.keys.to_pylist() == expected


def test_repeats_are_kept_and_counted() -> None:
    data = corpus([1, 1, 1, 2], [5, 5, 6, 5])
    assert len(data) == 4
    assert data.repeats == 1
    assert data.counts("candidate").tolist() == [3, 1]


def test_shared_ids_are_one_vocabulary() -> None:
    data = Corpus.from_tables(
        pa.table({"query": ["a", "b"], "candidate": ["b", "c"]}), shared_ids=True
    )
    assert data.queries.vocabulary is data.candidates.vocabulary
    part = data.restrict(torch.tensor([1]))
    assert part.queries.vocabulary is part.candidates.vocabulary
    assert part.queries.vocabulary.keys.to_pylist() == ["b", "c"]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30),
    st.data(),
)
def test_restriction_keeps_external_ids_and_features(
    pairs: list[tuple[int, int]], chosen: st.DataObject
) -> None:
    query, candidate = zip(*pairs, strict=True)
    data = Corpus.from_tables(
        pa.table({"query": query, "candidate": candidate}),
        candidate_features=pa.table({"id": range(7), "bag": [list(range(i)) for i in range(7)]}),
    )
    rows = chosen.draw(st.lists(st.sampled_from(range(len(pairs))), unique=True, min_size=1))
    part = data.restrict(torch.tensor(sorted(rows)))
    keys = [
        side.vocabulary.keys.take(part.interactions[name].combine_chunks()).to_pylist()
        for name, side in (("query", part.queries), ("candidate", part.candidates))
    ]
    assert list(zip(*keys, strict=True)) == [pairs[i] for i in sorted(rows)]
    assert set(keys[1]) == set(part.candidates.vocabulary.keys.to_pylist())
    lengths = part.candidates.features["bag"].offsets.diff().tolist()
    assert lengths == part.candidates.vocabulary.keys.to_pylist()
