"""Ids to rows, order, repeats, features, and what is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.corpus import Corpus, Vocabulary
from evergram.errors import DataError


def corpus(query: list[Any], candidate: list[Any], **columns: list[Any]) -> Corpus:
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate, **columns}))


@pytest.mark.parametrize(
    "ids",
    [[7, 3, 7], ["b", "a", "b"], pa.array(["b", "a", "b"]).dictionary_encode()],
    ids=["integers", "strings", "dictionary"],
)
def test_ids_of_any_type_get_rows_by_first_appearance(ids: Any) -> None:
    found = Corpus.from_tables(pa.table({"query": ids, "candidate": [1, 2, 3]}))
    assert found.column("query").tolist() == [0, 1, 0]
    assert len(found.queries) == 2


def test_time_orders_and_ties_keep_the_files_order() -> None:
    found = corpus([1, 2, 3, 4], [10, 11, 12, 13], time=[5, 1, 5, 1])
    assert found.queries.vocabulary.keys.to_pylist() == [2, 4, 1, 3]
    assert found.column("time").tolist() == [1, 1, 5, 5]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_the_order_is_stable(times: list[int]) -> None:
    found = corpus(list(range(len(times))), [0] * len(times), time=times)
    # Query i is line i: Python's sort is stable too, and another algorithm.
    expected = sorted(range(len(times)), key=lambda i: times[i])
    assert found.queries.vocabulary.keys.to_pylist() == expected


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint32(), pa.timestamp("ns"), pa.float32()])
def test_times_of_any_clock_are_wide_numbers(kind: pa.DataType) -> None:
    # 1,500 ns are no whole microsecond: no reason to refuse them.
    found = corpus([1, 2], [1, 1], time=pa.array([3000, 1500]).cast(kind))
    assert found.queries.vocabulary.keys.to_pylist() == [2, 1]
    wide = torch.float64 if pa.types.is_floating(kind) else torch.int64
    assert found.column("time").dtype == wide


def test_a_value_may_be_a_large_count_but_not_larger_than_float32() -> None:
    assert corpus([1], [1], value=[2**24 + 1]).column("value").tolist() == [2.0**24]
    with pytest.raises(DataError, match="row 2: value is inf"):
        corpus([1, 2], [1, 2], value=[1.0, 1e300])


def test_repeats_are_kept_and_counted() -> None:
    found = corpus([1, 1, 1, 2], [5, 5, 6, 5])
    assert len(found) == 4
    assert found.repeats == 1
    assert found.counts("candidate").tolist() == [3, 1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": [1.0, float("nan"), 2.0]}, "row 2: value is nan"),
        ({"value": [1.0, 2.0, float("inf")]}, "row 3: value is inf"),
        ({"time": [1, None, 2]}, "row 2: time is None"),
        ({"value": ["a", "b", "c"]}, "must be a number"),
    ],
)
def test_a_bad_number_is_named_by_its_row(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        corpus([1, 2, 3], [1, 2, 3], **columns)


def test_bad_ids_and_tables_are_refused() -> None:
    with pytest.raises(DataError, match="row 2: query is empty"):
        corpus([1, None], [1, 2])
    with pytest.raises(DataError, match="integers or strings"):
        corpus([1.5, 2.5], [1, 2])
    with pytest.raises(DataError, match="no rows"):
        corpus([], [])
    with pytest.raises(DataError, match="no column 'candidate'"):
        Corpus.from_tables(pa.table({"query": [1]}))
    with pytest.raises(DataError, match="no column 'value'"):
        corpus([1], [1]).column("value")


def test_features_follow_the_rows_and_share_a_vocabulary_by_name() -> None:
    found = Corpus.from_tables(
        pa.table({"query": ["u", "v"], "candidate": ["y", "x"]}),
        pa.table({"id": ["v", "u"], "tag": [["b"], ["a", "b"]]}),
        pa.table({"id": ["x", "z"], "tag": [["a"], ["c"]], "year": [1999, 2000]}),
    )
    tag = found.candidates.features["tag"]
    assert tag.vocabulary is found.queries.features["tag"].vocabulary
    keys = tag.vocabulary.keys
    query = found.queries.features["tag"]
    assert keys.take(pa.array(query.indices.numpy())).to_pylist() == ["a", "b", "b"]
    assert query.offsets.tolist() == [0, 2, 3]
    # y has no row; z has no interaction.
    assert tag.offsets.tolist() == [0, 0, 1]
    assert found.candidates.features["year"].offsets.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"id": [1, 1], "a": [1, 2]}, "id 1 twice"),
        ({"name": [1]}, "no column 'id'"),
        ({"id": [1], "price": [1.5]}, "holds floats"),
        ({"id": [1], "tags": [["a", None]]}, "null inside a list"),
        ({"id": [1], "place": [{"x": 1}]}, "holds struct"),
        ({"id": [1], "raw": [b"\xe9"]}, "holds binary"),
    ],
)
def test_bad_features_are_refused(features: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Corpus.from_tables(pa.table({"query": [1], "candidate": [1]}), pa.table(features))


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64())])
def test_bags_in_lists_of_any_kind(kind: pa.DataType) -> None:
    bags = [pa.array([[7, 8], None], kind), pa.array([[7, 8], None], pa.list_(pa.int64(), 2))]
    for bag in bags:
        features = pa.table({"id": [1, 2], "bag": bag})
        found = Corpus.from_tables(pa.table({"query": [2, 1], "candidate": [0, 0]}), features)
        assert found.queries.features["bag"].offsets.tolist() == [0, 0, 2]
        assert found.queries.features["bag"].vocabulary.keys.to_pylist() == [7, 8]


def test_shared_ids_are_one_vocabulary() -> None:
    found = Corpus.from_tables(
        pa.table({"query": ["a", "b"], "candidate": ["b", "c"]}), shared_ids=True
    )
    assert found.queries.vocabulary is found.candidates.vocabulary
    part = found.restrict(torch.tensor([1]))
    assert part.queries.vocabulary is part.candidates.vocabulary
    assert part.queries.vocabulary.keys.to_pylist() == ["b", "c"]


def test_a_vocabulary_asked_in_another_type() -> None:
    assert Vocabulary(pa.array([10, 20])).rows(pa.array(["20", "x", "10"])).tolist() == [1, -1, 0]
    assert Vocabulary(pa.array(["10"])).rows(pa.array([10, 11])).tolist() == [0, -1]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30),
    st.data(),
)
def test_restriction_keeps_external_ids_and_features(
    pairs: list[tuple[int, int]], data: st.DataObject
) -> None:
    query, candidate = zip(*pairs, strict=True)
    found = Corpus.from_tables(
        pa.table({"query": query, "candidate": candidate}),
        candidate_features=pa.table({"id": range(7), "bag": [list(range(i)) for i in range(7)]}),
    )
    rows = data.draw(st.lists(st.sampled_from(range(len(pairs))), unique=True, min_size=1))
    part = found.restrict(torch.tensor(sorted(rows)))
    keys = [
        side.vocabulary.keys.take(part.interactions[name].combine_chunks()).to_pylist()
        for name, side in (("query", part.queries), ("candidate", part.candidates))
    ]
    assert list(zip(*keys, strict=True)) == [pairs[i] for i in sorted(rows)]
    assert set(keys[1]) == set(part.candidates.vocabulary.keys.to_pylist())
    lengths = part.candidates.features["bag"].offsets.diff().tolist()
    assert lengths == part.candidates.vocabulary.keys.to_pylist()
