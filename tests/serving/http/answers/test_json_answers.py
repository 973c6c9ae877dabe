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
from evergram.serving.http.answers.json_answers import base64_rows, embeddings_json, transform_json

FLOATS = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=9),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@given(FLOATS)
def test_json_gives_the_same_numbers_again(vectors: np.ndarray) -> None:
    sources = np.zeros(len(vectors), np.int64)
    numbers = json.loads(transform_json(vectors, sources, {}, "m"))["vectors"]
    assert (np.asarray(numbers, dtype=np.float32) == vectors).all()


@given(FLOATS)
def test_base64_is_that_of_the_library(vectors: np.ndarray) -> None:
    assert base64_rows(vectors) == [base64.b64encode(row.tobytes()).decode() for row in vectors]


@given(FLOATS, st.booleans(), st.booleans())
def test_an_answer_is_json(vectors: np.ndarray, as_base64: bool, turned: bool) -> None:
    """In whatever order the vectors lie in memory."""
    sources = np.arange(len(vectors))
    given_vectors = np.asfortranarray(vectors) if turned else vectors
    body = json.loads(embeddings_json(given_vectors, sources, {"version": 1}, 'a"b', as_base64))
    assert body["model"] == 'a"b'
    assert body["evergram"] == {"version": 1, "computed_from": sources.tolist()}
    assert [row["index"] for row in body["data"]] == sources.tolist()
    for row, vector in zip(body["data"], vectors, strict=True):
        numbers = row["embedding"]
        if as_base64:
            numbers = np.frombuffer(base64.b64decode(numbers), "<f4")
        assert (np.asarray(numbers, dtype=np.float32) == vector).all()


@pytest.mark.parametrize("as_base64", [True, False])
def test_values_that_are_not_finite_are_refused(as_base64: bool) -> None:
    vectors, sources = np.array([[1.0, np.inf]], np.float32), np.zeros(1, np.int64)
    with pytest.raises(DataError, match="not finite"):
        embeddings_json(vectors, sources, {}, "m", as_base64)
    with pytest.raises(DataError, match="not finite"):
        transform_json(vectors, sources, {}, "m")
