"""A CSV whose quotation marks do not pair is refused; the oracle is Python's own strict reader."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evergram.errors import DataError
from evergram.quotation import refuse_open_quotation


def is_refused(text: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        path.write_bytes(text.encode())
        try:
            refuse_open_quotation(path, ",")
        except DataError:
            return True
        return False


@given(st.text(alphabet='a",\n', max_size=12))
def test_it_refuses_what_a_strict_reader_refuses(text: str) -> None:
    try:
        list(csv.reader(io.StringIO(text, newline=""), strict=True))
        wrong = False
    except csv.Error:
        wrong = True
    assert is_refused(text) == wrong


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
        ('id,text\n1,a\n2,"b\n3,c\n', "line 3: .* never ends; close it"),
        ('id,text\n1,"a"b\n', "line 2: .* ends within its cell; close it"),
        ('"id,text\n', "line 1: .* never ends"),
    ],
)
def test_the_line_that_opens_it_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=sentence):
        refuse_open_quotation(tmp_path / "x.csv", ",")


def test_an_unpacked_text_is_judged_as_the_file_is(tmp_path: Path) -> None:
    for text in ('id,text\n1,"a\nb"\n', ""):
        refuse_open_quotation(tmp_path / "x.csv.gz", ",", io.BytesIO(text.encode()))
    with pytest.raises(DataError, match=r"x\.csv\.gz line 2: .* never ends"):
        refuse_open_quotation(tmp_path / "x.csv.gz", ",", io.BytesIO(b'id,text\n1,"a\n'))
