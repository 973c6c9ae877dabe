"""The pattern of a row, and the escapes of its strings."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evergram.data.wikipedia.sql_row import NEXT_ROW, consecutive, row_pattern, unescape

ROW = ("a", "b", "c")


def test_a_pattern_captures_the_wanted_columns_in_the_order_of_the_row() -> None:
    pattern, names = row_pattern(ROW, (("c", False, True), ("a", True, False)))
    assert names == ["a", "c"]
    rows = b"(1,0.5,'x'),(NULL,NULL,'it\\'s'),(-7,'),(','');"
    matches = [match.groups() for match in consecutive(pattern, rows, 0)]
    assert matches == [(b"1", b"x"), (None, b"it\\'s"), (b"-7", b"")]


@pytest.mark.parametrize(
    "row", [b"(1,2)", b"(1,2,3,4)", b"(1,2,NULL)", b"('1',2,'x')", b"(1,2,'x", b"(1.5,2,'x')"]
)
def test_a_row_of_other_columns_or_types_does_not_match(row: bytes) -> None:
    pattern, _ = row_pattern(ROW, (("c", False, True), ("a", True, False)))
    assert list(consecutive(pattern, row + b";", 0)) == []


def test_matching_stops_at_the_first_row_that_does_not_fit() -> None:
    pattern, _ = row_pattern(ROW, (("a", True, True),))
    text = b"(1,0,0),(x),(3,0,0);"
    assert [m[1] for m in consecutive(pattern, text, 0)] == [b"1"]
    following = NEXT_ROW.search(text, 8)
    assert following is not None
    assert text[following.end() :] == b"(3,0,0);"


@given(st.lists(st.none() | st.binary(max_size=12), max_size=6))
def test_escapes_are_undone(values: list[bytes | None]) -> None:
    letters = {0: b"\\0", 10: b"\\n", 13: b"\\r", 26: b"\\Z", 39: b"''", 92: b"\\\\"}
    escaped = [
        None if value is None else b"".join(letters.get(b, bytes([b])) for b in value)
        for value in values
    ]
    assert unescape(pa.array(escaped, pa.binary())).to_pylist() == values
