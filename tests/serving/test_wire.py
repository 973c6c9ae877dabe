"""Vectors as bytes, against the standard library."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from evergram.errors import DataError
from evergram.serving.wire import base64_rows, embeddings_json, float_rows

FLOATS = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=9),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@given(FLOATS)
def test_json_gives_the_same_numbers_again(vectors: np.ndarray) -> None:
    found = [json.loads(row) for row in float_rows(vectors)]
    assert (np.asarray(found, dtype=np.float32) == vectors).all()


@given(FLOATS)
def test_base64_is_that_of_the_library(vectors: np.ndarray) -> None:
    assert base64_rows(vectors) == [base64.b64encode(row.tobytes()) for row in vectors]


@given(FLOATS, st.booleans())
def test_an_answer_is_json(vectors: np.ndarray, as_base64: bool) -> None:
    sources = list(range(len(vectors)))
    body = json.loads(embeddings_json(vectors, sources, {"version": 1}, 'a"b', as_base64))
    assert body["model"] == 'a"b'
    assert body["evergram"] == {"version": 1, "computed_from": sources}
    assert [row["index"] for row in body["data"]] == sources


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(DataError, match="not finite"):
        float_rows(np.array([[1.0, np.inf]], np.float32))
