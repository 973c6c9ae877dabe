"""A corpus: vocabularies, order, repeats, and the types and rows of features."""

from __future__ import annotations

import datetime
import decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.columnar.feature_types import NUMBER, TIME, bucket_starts, typed
from evergram.data.columnar.features import Feature, Side, summaries, take_ragged
from evergram.data.columnar.vocabulary import Vocabulary, plain, to_tensor
from evergram.data.corpus import Corpus
from evergram.errors import DataError


def corpus(query: list[Any], candidate: list[Any], **columns: list[Any]) -> Corpus:
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate, **columns}))


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
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30), st.data()
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


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_rows_are_those_of_first_appearance_for_numbers_and_for_their_texts(
    keys: list[int],
) -> None:
    distinct = list(dict.fromkeys(keys))
    expected = [distinct.index(key) for key in keys]
    for asked in (pa.array(keys), pa.array([str(key) for key in keys])):
        vocabulary = Vocabulary.by_first_appearance(asked)
        assert vocabulary.rows(pa.array(keys)).tolist() == expected
        assert vocabulary.rows(pa.array([str(key) for key in keys])).tolist() == expected


def test_a_text_that_is_no_64_bit_number_is_no_key_of_numbers() -> None:
    texts = ["10", "010", " 10", "1e1", "", "9223372036854775808", "-9223372036854775809"]
    rows = Vocabulary(pa.array([10])).rows(pa.array(texts)).tolist()
    assert rows == [0, -1, -1, -1, -1, -1, -1]
    zeros = ["0", "-0", "00", "-010", "0000000000000000010", "-10", "-9223372036854775808"]
    numbers = Vocabulary(pa.array([0, -10, 10, -(2**63)]))
    assert numbers.rows(pa.array(zeros)).tolist() == [0, -1, -1, -1, -1, 1, 3]


def test_plain_ids_are_one_array_of_int64_or_string() -> None:
    chunked = pa.chunked_array([["b"], ["a", "b"]])
    for values in (chunked, chunked.dictionary_encode(), chunked.cast(pa.large_string())):
        assert plain(values).equals(pa.array(["b", "a", "b"]))
    assert plain(pa.array([1, 2], pa.uint8())).equals(pa.array([1, 2]))
    # A number that int64 cannot hold makes texts of all.
    assert plain(pa.array([1, 2**63], pa.uint64())).to_pylist() == ["1", str(2**63)]


def test_a_tensor_never_writes_into_arrow() -> None:
    column = pa.chunked_array([[1, 2], [3]])
    tensor = to_tensor(column)
    tensor.zero_()
    assert column.to_pylist() == [1, 2, 3]


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


def test_bad_features_are_refused() -> None:
    for features, message in [
        ({"id": [1, 1], "a": [1, 2]}, "id 1 twice"),
        ({"name": [1]}, "no column 'id'"),
        ({"id": [1], "price": [[1.5]]}, "lists of floats"),
        ({"id": [1], "tags": [["a", None]]}, "null inside a list"),
        ({"id": [1], "place": [{"x": 1}]}, "holds struct"),
        ({"id": [1], "raw": [b"\xe9"]}, "holds binary"),
        ({"id": [1], "age": pa.nulls(1, pa.month_day_nano_interval())}, "holds month_day_nano"),
    ]:
        with pytest.raises(DataError, match=message):
            Corpus.from_tables(pa.table({"query": [1], "candidate": [1]}), pa.table(features))


def test_bags_in_lists_of_any_kind() -> None:
    for kind in [pa.list_(pa.int64()), pa.large_list(pa.int64())]:
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


def test_a_text_is_no_integer_id() -> None:
    features = pa.table({"id": ["1574"], "genre": ["war"]})
    message = r"theirs are text, such as '1574', and those are integers, such as 1574"
    with pytest.raises(DataError, match=message):
        Corpus.of([(1, 1574)], candidate_features=features)


NOON = datetime.datetime(2025, 1, 1, 12)


def test_numbers_and_times_are_what_they_are_however_they_are_written() -> None:
    cases: list[Any] = [
        (["658,36", "1.234,5", None, "n/a", "12"], [658.36, 1234.5, None, None, 12]),
        (["1,234", "999", "12.5"], [1234, 999, 12.5]),
        (["0,500", "1,250"], [0.5, 1.25]),
        (["1e3", " -2.5 ", ""], [1000, -2.5, None]),
        ([3, None, 4], [3, None, 4]),
        ([1.5, float("nan")], [1.5, None]),
        ([decimal.Decimal("1.5")], [1.5]),
        (["2025-01-01T13:00:00+01:00", "2025-01-01 12:00Z"], [NOON, NOON]),
        (["2025-01-01", "2025-01-01 12:00"], [datetime.datetime(2025, 1, 1), NOON]),
        (["1.1.2025 12:00", "31.12.2025"], [NOON, datetime.datetime(2025, 12, 31)]),
        (
            ["01/01/2025", "12/31/2025"],
            [datetime.datetime(2025, m, d) for m, d in ((1, 1), (12, 31))],
        ),
        ([datetime.date(2025, 1, 1)], [datetime.datetime(2025, 1, 1)]),
    ]
    for cells, values in cases:
        column = typed(pa.chunked_array([pa.array(cells)]), "x", "features")
        assert column.type == (TIME if isinstance(values[0], datetime.datetime) else NUMBER)
        assert column.to_pylist() == values


def test_all_else_are_keys() -> None:
    for name, cells in [
        ("zip", ["0017", "18"]),
        ("size", ["17", "18"]),
        ("price", ["1,234.5", "1.234,5"]),
        ("price", ["1,5", "unknown"]),
        ("listed", ["09.05.2025", "10.05.2025"]),
        ("listed", ["2025-02-28", "2025-02-30"]),
        ("brand_id", [1, 2]),
        ("brandId", [1, 2]),
        ("tags", [[1, 2], [3]]),
        ("sold", [True, None]),
    ]:
        column = pa.chunked_array([pa.array(cells)])
        assert typed(column, name, "features").equals(column)


def test_times_with_a_zone_and_without_in_one_column_are_refused_by_row() -> None:
    column = pa.chunked_array([["2025-01-01T12:00:00Z", "2025-01-02"]])
    with pytest.raises(DataError, match=r"features row 2: listed is '2025-01-02'"):
        typed(column, "listed", "features")


def test_a_name_of_both_sides_is_of_one_type() -> None:
    queries, candidates = (pa.table({"id": [1], "x": x}) for x in ([1.5], ["new"]))
    with pytest.raises(DataError, match="'x' is a number of queries and a category of candidates"):
        Corpus.of([(1, 1)], query_features=queries, candidate_features=candidates)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_buckets_ascend_and_the_row_of_a_value_is_that_of_its_bucket(values: list[float]) -> None:
    starts = bucket_starts(np.array(values), NUMBER, missing=True)
    vocabulary, bounds = Vocabulary(starts), starts.drop_null().to_pylist()
    assert bounds == sorted(set(bounds))
    asked = [*values, min(values) - 1, max(values) + 1, None]
    rows = vocabulary.rows(pa.array(asked, NUMBER)).tolist()
    for value, row in zip(asked[:-1], rows[:-1], strict=True):
        assert row == max(sum(bound <= value for bound in bounds) - 1, 0)
    assert rows[-1] == len(bounds) == vocabulary.row_of_missing


def test_buckets_hold_about_as_many_objects_each_and_a_frequent_value_has_its_own() -> None:
    starts = bucket_starts(np.arange(10_000.0), NUMBER, missing=False)
    sizes = np.bincount(Vocabulary(starts).rows(pa.array(np.arange(10_000.0))).numpy())
    assert (len(sizes), sizes.min(), sizes.max()) == (64, 156, 157)
    often = np.array([0.0] * 80 + [*range(1, 21)])
    assert bucket_starts(often, NUMBER, missing=False).to_pylist()[:2] == [0, 0.5]
    # Years, of which each has films enough.
    assert len(bucket_starts(np.repeat(np.arange(40.0), 4), NUMBER, missing=False)) == 40


def test_what_is_said_of_each_feature() -> None:
    ids = list(range(40))
    features = pa.table(
        {
            "id": ids,
            "price": [None, *("1,50" for _ in ids[1:])],
            "listed": ["2025-01-01T01:00:00+01:00"] * 40,
            "name": [f"lamp {i}" for i in ids],
            "stock": [*map(str, ids[1:]), "sold out"],
            "kind": ["lamp", "shade"] * 20,
            "day": ["09.05.2025", "10.05.2025"] * 20,
        }
    )
    corpus = Corpus.of([(1, i) for i in ids], candidate_features=features)
    said = {one.name: one for one in summaries(corpus.queries, corpus.candidates)}
    assert (said["price"].type, said["price"].values, said["price"].coverage) == (
        "number",
        1,
        39 / 40,
    )
    assert said["listed"].most_frequent == "2025-01-01 00:00:00"
    assert (said["kind"].share, said["kind"].warning) == (0.5, None)
    assert "'09.05.2025'" in str(said["day"].warning)
    assert "'name' has 40 values for 40 objects" in str(said["name"].warning)
    assert "'sold out' is neither" in str(said["stock"].warning)
