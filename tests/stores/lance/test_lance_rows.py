"""Rows of LanceDB's tables, and ids in its SQL."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from evergram.stores.lance import lance_rows
from evergram.stores.lance.lance_rows import best_of, block_of, conditions, literal, vectors_of


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (7, "7"),
        (-1, "-1"),
        (-(2**63), "cast('-9223372036854775808' as bigint)"),
        ("a", "'a'"),
        ("it's", "'it''s'"),
        ("';drop", "''';drop'"),
    ],
)
def test_an_id_is_quoted_as_sql_reads_it(key: int | str, text: str) -> None:
    assert literal(key) == text


def test_many_ids_are_several_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance_rows, "LOOKED_UP", 2)
    assert list(conditions(pa.array([1, 2, 3]))) == ["id in (1, 2)", "id in (3)"]
    assert list(conditions(pa.array([], pa.int64()))) == []


def test_rows_of_a_table_come_with_their_checksums() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    table = pa.table(
        {
            "id": pa.chunked_array([["a"], ["b", "c"]]),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 2),
            "check": pa.array([7, 8, 9], pa.uint32()),
        }
    )
    rows, checks = block_of(4, table)
    assert (rows.version, rows.ids.to_pylist(), checks.tolist()) == (4, ["a", "b", "c"], [7, 8, 9])
    assert np.array_equal(rows.vectors, vectors)
    assert np.array_equal(vectors_of(table.slice(1, 2)), vectors[1:])


def test_the_best_are_descending_and_of_equal_ones_the_first() -> None:
    vectors = np.array([[1, 0], [3, 0], [3, 0], [2, 0]], np.float32)
    ids, scores = best_of(pa.array([10, 11, 12, 13]), vectors, np.array([1, 0], np.float32), 3)
    assert ids.to_pylist() == [11, 12, 13]
    assert scores.tolist() == [3, 3, 2]
