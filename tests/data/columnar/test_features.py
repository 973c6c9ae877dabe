"""Features of entities as ragged rows, and the tables of features that are refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.columnar.features import Feature, Side, take_ragged
from evergram.data.columnar.vocabulary import Vocabulary
from evergram.data.corpus import Corpus
from evergram.errors import DataError


def test_features_follow_the_rows_and_share_a_vocabulary_by_name() -> None:
    data = Corpus.from_tables(
        pa.table({"query": ["u", "v"], "candidate": ["y", "x"]}),
        pa.table({"id": ["v", "u"], "tag": [["b"], ["a", "b"]]}),
        pa.table({"id": ["x", "z"], "tag": [["a"], ["c"]], "year": [1999, 2000]}),
    )
    tag = data.candidates.features["tag"]
    assert tag.vocabulary is data.queries.features["tag"].vocabulary
    keys = tag.vocabulary.keys
    query = data.queries.features["tag"]
    assert keys.take(pa.array(query.indices.numpy())).to_pylist() == ["a", "b", "b"]
    assert query.offsets.tolist() == [0, 2, 3]
    # y has no row; z has no interaction.
    assert tag.offsets.tolist() == [0, 0, 1]
    assert data.candidates.features["year"].offsets.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"id": [1, 1], "a": [1, 2]}, "id 1 twice"),
        ({"name": [1]}, "no column 'id'"),
        ({"id": [1], "price": [[1.5]]}, "lists of floats"),
        ({"id": [1], "tags": [["a", None]]}, "null inside a list"),
        ({"id": [1], "place": [{"x": 1}]}, "holds struct"),
        ({"id": [1], "raw": [b"\xe9"]}, "holds binary"),
        ({"id": [1], "age": pa.nulls(1, pa.month_day_nano_interval())}, "holds month_day_nano"),
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
        data = Corpus.from_tables(pa.table({"query": [2, 1], "candidate": [0, 0]}), features)
        assert data.queries.features["bag"].offsets.tolist() == [0, 0, 2]
        assert data.queries.features["bag"].vocabulary.keys.to_pylist() == [7, 8]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=8),
    st.lists(st.integers(0, 100), max_size=10),
)
def test_rows_of_a_ragged_table_are_those_of_a_list_of_lists(
    bags: list[list[int]], asked: list[int]
) -> None:
    rows = [row % len(bags) for row in asked]
    offsets = torch.tensor([0, *(len(bag) for bag in bags)]).cumsum(0)
    flat = torch.tensor([key for bag in bags for key in bag], dtype=torch.int64)
    values, ends = take_ragged(flat, offsets, torch.tensor(rows, dtype=torch.int64))
    assert [values[a:b].tolist() for a, b in pairwise(ends)] == [bags[row] for row in rows]


def test_a_side_takes_the_features_of_its_rows_along() -> None:
    tags = Feature(
        Vocabulary(pa.array(["x", "y"])), torch.tensor([0, 1, 1, 3]), torch.tensor([0, 1, 0])
    )
    side = Side(Vocabulary(pa.array([10, 20, 30])), {"tags": tags})
    part = side.take(torch.tensor([2, 0]))
    assert part.vocabulary.keys.to_pylist() == [30, 10]
    assert part.features["tags"].indices.tolist() == [1, 0, 0]
    assert part.features["tags"].offsets.tolist() == [0, 2, 3]
    assert repr(side) == "Side(3 entities, features tags)"


def test_features_of_the_other_side_are_refused() -> None:
    table = pa.table({"query": [1], "candidate": ["a"]})
    with pytest.raises(DataError, match=r"query features have none of the ids .*other side\?"):
        Corpus.from_tables(table, pa.table({"id": ["a"], "tag": ["x"]}))


def test_a_text_is_no_integer_id() -> None:
    features = pa.table({"id": ["1574"], "genre": ["war"]})
    message = r"theirs are text, such as '1574', and those are integers, such as 1574"
    with pytest.raises(DataError, match=message):
        Corpus.of([(1, 1574)], candidate_features=features)
