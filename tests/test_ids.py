"""Ids are read as they are written, and missing cells are recognised."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.ids import first_missing, ids_of_text, missing_sentence


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "20", "-3", "0"], [1, 20, -3, 0]),
        (["1", "00017"], ["1", "00017"]),
        (["1", "+5"], ["1", "+5"]),
        (["1", "-0"], ["1", "-0"]),
        (["1", " 2"], ["1", " 2"]),
        (["1", "A1"], ["1", "A1"]),
        (["9223372036854775807", "1"], [2**63 - 1, 1]),
        (["9223372036854775808", "1"], ["9223372036854775808", "1"]),
        (["1e5", "x"], ["1e5", "x"]),
        (["17.0", "18"], [17.0, 18.0]),  # no ids: their readers refuse floats
    ],
)
def test_a_column_of_text_as_ids(cells: list[str], expected: list[object]) -> None:
    assert ids_of_text(pa.chunked_array([cells])).to_pylist() == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integers_are_read_as_themselves(numbers: list[int]) -> None:
    assert ids_of_text(pa.array(map(str, numbers))).to_pylist() == numbers


@pytest.mark.parametrize(
    "word", ["NaN", "nan", "NULL", "null", "None", "<NA>", "N/A", "#N/A", r"\N"]
)
def test_words_for_a_missing_value_are_ids_in_typed_files_only(word: str) -> None:
    column = pa.array(["a", word])
    assert first_missing(column, text_file=True) == 1
    assert first_missing(column) == -1
    assert first_missing(column.dictionary_encode()) == -1
    sentence = missing_sentence("x.csv row 2", "query", word, text_file=True)
    assert f"x.csv row 2: query is {word!r}, which in a text file means a missing value" in sentence


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None]),
        pa.array(["a", ""]),
        pa.array(["a", None]).dictionary_encode(),
        pa.array([1, None]),
        pa.array([1.0, float("nan")]),
        pa.chunked_array([["a"], [""]]),
        pa.array(["a", ""], pa.large_string()),
    ],
)
def test_a_missing_cell_is_never_an_id(column: pa.Array) -> None:
    assert first_missing(column) == 1


def test_words_that_only_resemble_a_missing_value_are_ids() -> None:
    words = pa.array(["NA", "nothing", "nullable", "Nan Goldin", "0"])
    assert first_missing(words, text_file=True) == -1
