"""Tables of interactions: their numbers, and the rows of those that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from evergram.data.corpus import Corpus
from evergram.errors import DataError


def corpus(query: list[Any], candidate: list[Any], **columns: list[Any]) -> Corpus:
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate, **columns}))


@pytest.mark.parametrize(
    "kind", [pa.int32(), pa.uint32(), pa.timestamp("ns"), pa.float32(), pa.float16()]
)
def test_times_of_any_clock_are_wide_numbers(kind: pa.DataType) -> None:
    # 1,500 ns are no whole microsecond: no reason to refuse them.
    data = corpus([1, 2], [1, 1], time=pa.array([3000, 1500]).cast(kind))
    assert data.queries.vocabulary.keys.to_pylist() == [2, 1]
    wide = torch.float64 if pa.types.is_floating(kind) else torch.int64
    assert data.column("time").dtype == wide


def test_a_value_may_be_a_large_count_but_not_larger_than_float32() -> None:
    assert corpus([1], [1], value=[2**24 + 1]).column("value").tolist() == [2.0**24]
    with pytest.raises(DataError, match=r"row 2: value is (inf|1e)"):
        corpus([1, 2], [1, 2], value=[1.0, 1e300])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": [1.0, float("nan"), 2.0]}, "row 2: value is nan"),
        ({"value": [1.0, 2.0, float("inf")]}, "row 3: value is inf"),
        ({"time": [1, None, 2]}, "row 2: time is empty"),
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
    with pytest.raises(DataError, match=r"row 2: candidate is 9223372036854775808; .* below 2⁶³"):
        Corpus.of({"query": [1, 2], "candidate": np.array([2**63 - 1, 2**63], np.uint64)})


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(DataError, match=r"row 2: weight is -1; it must be a finite num"):
        corpus([2, 1], ["b", "a"], weight=[1, -1])
