"""Streams that the service writes, as Arrow itself reads them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from evergram.serving.http.answers.arrow_answers import hit_columns, vector_columns, write_stream
from evergram.stores.store import Hits

FLOATS = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=9),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@given(FLOATS, st.sampled_from(["none", "int64", "string"]))
def test_a_stream_of_vectors_is_read_by_arrow(vectors: np.ndarray, ids: str) -> None:
    keys = np.arange(len(vectors)) * 7 - 3
    column = {
        "none": None,
        "int64": pa.array(keys),
        "string": pa.array([f"k{key}" for key in keys]),
    }[ids]
    sources = np.arange(len(vectors))
    metadata = {"evergram.model": "shop@v1", "evergram.version": "1"}
    body = write_stream(vector_columns(column, vectors, sources), metadata)
    with pa.ipc.open_stream(body) as reader:
        batches = list(reader)
    assert len(batches) == 1
    batch = batches[0]
    batch.validate(full=True)
    assert batch.schema.metadata == {k.encode(): v.encode() for k, v in metadata.items()}
    assert batch.schema.names == [
        *(["id"] if column is not None else []),
        "vector",
        "computed_from",
    ]
    if column is not None:
        assert batch["id"].equals(column)
    assert (np.array(batch["vector"].to_pylist(), dtype=np.float32) == vectors).all()
    assert batch["computed_from"].to_pylist() == sources.tolist()


def test_hits_are_one_row_each_under_the_number_of_their_query() -> None:
    first = Hits(pa.array([3, 4]), np.array([0.5, 0.25], np.float32), np.array([1, 2]))
    none = Hits(pa.array([], pa.int64()), np.zeros(0, np.float32), np.zeros(0, np.int64))
    last = Hits(pa.array([7]), np.array([0.125], np.float32), np.array([2]))
    columns = hit_columns([first, none, last], pa.int64())
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "query": [0, 0, 2],
        "id": [3, 4, 7],
        "score": [0.5, 0.25, 0.125],
        "computed_from": [1, 2, 2],
    }
    assert [len(column) for column in hit_columns([], pa.string()).values()] == [0] * 4
