"""What a column of features means: numbers, times or keys, and the buckets of numbers."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evergram.data.columnar.feature_types import NUMBER, TIME, bucket_starts, typed
from evergram.data.columnar.features import summaries
from evergram.data.columnar.vocabulary import Vocabulary
from evergram.data.corpus import Corpus
from evergram.errors import DataError

NOON = datetime.datetime(2025, 1, 1, 12)


@pytest.mark.parametrize(
    ("cells", "values"),
    [
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
    ],
)
def test_numbers_and_times_are_what_they_are_however_they_are_written(
    cells: list[Any], values: list[Any]
) -> None:
    column = typed(pa.chunked_array([pa.array(cells)]), "x", "features")
    assert column.type == (TIME if isinstance(values[0], datetime.datetime) else NUMBER)
    assert column.to_pylist() == values


@pytest.mark.parametrize(
    ("name", "cells"),
    [
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
    ],
)
def test_all_else_are_keys(name: str, cells: list[Any]) -> None:
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
