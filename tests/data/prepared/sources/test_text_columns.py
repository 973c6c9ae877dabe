"""Pieces of a text's columns are what `ids_of_text` and Arrow make of the whole column."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.csv as csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evergram.data.prepared.sources.text_columns import TextIds, numbers_of_text, times_of_text
from evergram.errors import DataError
from evergram.ids import ids_of_text

CELLS = st.sampled_from(["1", "-7", "007", "1.5", "2e3", "a", "9223372036854775808", "é"])


def column(*texts: str | None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, pa.string())])


@given(pieces=st.lists(st.lists(CELLS, min_size=1, max_size=3), min_size=1, max_size=3))
def test_ids_in_pieces_are_of_the_type_of_the_whole_column(pieces: list[list[str]]) -> None:
    whole = ids_of_text(column(*(cell for piece in pieces for cell in piece))).type
    ids = TextIds("t.csv", "query")
    types = {ids.convert(column(*piece), 0).type for piece in pieces}
    if pa.types.is_floating(whole):
        with pytest.raises(DataError, match="numbers with decimals"):
            ids.finish()
        return
    ids.finish()
    assert (types == {pa.int64()}) == pa.types.is_integer(whole)


def test_a_missing_id_is_named_with_its_row() -> None:
    for cell, why in [("null", "means a missing value"), (None, "is empty"), ("", "is empty")]:
        with pytest.raises(DataError, match=rf"t.csv row 12: query .*{why}"):
            TextIds("t.csv", "query").convert(column("a", cell), 10)


def inferred(name: str, cells: list[str]) -> pa.ChunkedArray:
    """Return what Arrow reads in a whole file."""
    text = f"{name},x\n" + "".join(f"{cell},\n" for cell in cells)
    options = csv.ConvertOptions(null_values=[""])
    return csv.read_csv(io.BytesIO(text.encode()), convert_options=options)[name]


@pytest.mark.parametrize(
    "cells",
    [["1", " 2 "], ["1.5", "2"], ["1e3", "-inf", "nan"], ["9223372036854775807"], ["1e400"]],
)
def test_numbers_are_those_that_arrow_reads(cells: list[str]) -> None:
    expected = inferred("value", cells).cast(pa.float64(), safe=False)
    read = numbers_of_text(column(*cells), "value", "t.csv")
    assert str(read.to_pylist()) == str(expected.to_pylist())


@pytest.mark.parametrize(
    "cells",
    [
        ["1", "2"],
        ["1", "2.5"],
        ["2020-01-31", "1969-12-31"],
        ["2020-01-31 10:11:12", "2020-01-31"],
        ["2020-01-31T10:11:12Z"],
        ["2020-01-31 10:11:12.123456"],
        ["2020-01-31 10:11:12.123456789"],
    ],
)
def test_times_are_those_that_arrow_reads(cells: list[str]) -> None:
    def micros(column: pa.ChunkedArray) -> list[int | float]:
        if pa.types.is_temporal(column.type):
            column = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        values: list[int | float] = column.to_pylist()
        return values

    read = times_of_text(column(*cells), "time", "t.csv")
    assert micros(read) == micros(inferred("time", cells))


def test_what_is_no_number_and_no_date_is_named_with_its_row() -> None:
    with pytest.raises(DataError, match=r"t.csv row 7: value is 'many'; it must be a number"):
        numbers_of_text(column("1", "many"), "value", "t.csv", 5)
    with pytest.raises(DataError, match=r"t.csv row 2: time is '10:00'; it must be a number or a"):
        times_of_text(column("1", "10:00"), "time", "t.csv")
    with pytest.raises(DataError, match=r"rows 3 to 4: time is written in several ways"):
        times_of_text(column("1", "2020-01-31"), "time", "t.csv", 2)
    assert numbers_of_text(column("+1.5"), "value", "t.csv").to_pylist() == [1.5]
