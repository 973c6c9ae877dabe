"""Files of text: their ids, their quotation marks, and what they are in spite of their names."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.errors import DataError
from evergram.file_content import refuse_open_quotation, refuse_other_content
from evergram.ids import ids_of_text, refuse_missing


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "20", "-3", "0"], [1, 20, -3, 0]),
        (["1", "00017"], ["1", "00017"]),
        (["1", " 2"], ["1", " 2"]),
        (["1", "A1"], ["1", "A1"]),
        (["9223372036854775807", "1"], [2**63 - 1, 1]),
        (["9223372036854775808", "1"], ["9223372036854775808", "1"]),
        (["17.0", "18"], [17.0, 18.0]),  # no ids: their readers refuse floats
    ],
)
def test_a_column_of_text_as_ids(cells: list[str], expected: list[object]) -> None:
    assert ids_of_text(pa.array(cells)).to_pylist() == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integers_are_read_as_themselves(numbers: list[int]) -> None:
    assert ids_of_text(pa.array(map(str, numbers))).to_pylist() == numbers


def first_missing(column: pa.Array, **options: bool) -> str:
    try:
        refuse_missing(column, "x.csv row", **options)
    except DataError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("word", ["nan", "NULL", "#N/A", r"\N"])
def test_words_for_a_missing_value_are_ids_in_typed_files_only(word: str) -> None:
    column = pa.array(["a", word])
    assert first_missing(column, text_file=True).startswith(f"x.csv row 2 has the id {word!r} (in")
    assert first_missing(column) == first_missing(column.dictionary_encode()) == ""


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None]),
        pa.array(["a", ""]),
        pa.array([1, None]),
        pa.array([1.0, float("nan")]),
        pa.chunked_array([["a"], [""]]),
    ],
)
def test_a_missing_cell_is_never_an_id(column: pa.Array) -> None:
    assert first_missing(column).startswith("x.csv row 2 has ")


def is_refused(text: str) -> bool:
    try:
        refuse_open_quotation("x.csv", ",", io.BytesIO(text.encode()))
    except DataError:
        return True
    return False


@given(st.lists(st.lists(st.text(max_size=8), min_size=1, max_size=3), max_size=4))
def test_what_a_writer_wrote_is_accepted(rows: list[list[str]]) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    text = file.getvalue().encode(errors="ignore").decode()
    assert not is_refused(text)
    assert not is_refused(f"\ufeff{text}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('id,text\n1,a\n2,"b\n3,c\n', "line 3: .* close it"),
        ('id,text\n1,"a"b\n', "line 2: .* close it"),
        ('"id,text\n', "line 1: .* close it"),
    ],
)
def test_the_line_that_opens_it_is_named(text: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        refuse_open_quotation("x.csv", ",", io.BytesIO(text.encode()))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"PAR1 and more", "is a Parquet file, despite its name; rename it to end in .parquet"),
        (b"\xff\xfea\0", "is UTF-16 text, despite its name; save it as UTF-8"),
        (b"  <!DOCTYPE html>", "is a web page, despite its name; download the file itself"),
        (b"a,b\n1,\0\n", "has NUL bytes, so it is not UTF-8 text"),
    ],
)
def test_a_file_is_named_as_what_it_is(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        refuse_other_content(path)
