"""Interactions of files are named by role, checked, and alike in all sources."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evergram.data.reading import table_stream
from evergram.data.reading.interaction_source import (
    Interactions,
    InteractionSource,
    sources_of_files,
)
from evergram.data.reading.source_files import source_files
from evergram.errors import DataError


def source(path: Path, text: str, **columns: str) -> InteractionSource:
    path.write_text(text)
    return sources_of_files(source_files(path), columns)[0]


def read(one: InteractionSource) -> pa.Table:
    return Interactions([one]).table()


def test_columns_are_named_by_role(tmp_path: Path) -> None:
    text = "user,item,stars,when\n1,a,0.5,2020-01-01\n2,b,1,2020-01-02\n"
    roles = {"query": "user", "candidate": "item", "value": "stars", "time": "when"}
    table = read(source(tmp_path / "a.csv", text, **roles))
    assert table.schema.types == [pa.int64(), pa.string(), pa.float32(), pa.int64()]
    assert table["time"].to_pylist() == [1_577_836_800_000_000, 1_577_923_200_000_000]


def test_two_roles_may_share_a_column(tmp_path: Path) -> None:
    text = "query,candidate,n\n1,2,3\n"
    table = read(source(tmp_path / "a.csv", text, value="n", weight="n"))
    assert table["value"].to_pylist() == table["weight"].to_pylist() == [3.0]


@pytest.mark.parametrize(
    ("text", "columns", "why"),
    [
        ("user,item\n1,2\n", {}, "--column query=user --column candidate=item"),
        ("foo,bar\n1,2\n", {}, "query=… --column candidate=…"),
        ("1,2\n1,2\n", {}, "seems to be a row"),
        ("query,candidate\n1,2\n", {"value": "stars"}, "no column 'stars'"),
        ("a,b\n1,2\n", {"query": "a", "candidate": "a"}, "both the column 'a'"),
    ],
)
def test_a_file_without_the_columns_is_refused(
    tmp_path: Path, text: str, columns: dict[str, str], why: str
) -> None:
    with pytest.raises(DataError, match=why):
        source(tmp_path / "a.csv", text, **columns)


def test_a_column_that_seems_a_time_is_pointed_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        source(tmp_path / "a.csv", "query,candidate,timestamp\n1,2,3\n")
    assert "--column time=timestamp" in caplog.text


def test_a_bad_cell_is_named_with_its_row_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_stream, "ROWS", 3)
    good = "1,2,3\n" * 7
    for cells, why in [
        (",2,3", "row 8: query is empty"),
        (
            "1,NULL,3",
            "row 8: candidate is 'NULL'.* this word means a missing value",
        ),
        ("1,2,", "row 8: value is empty"),
        ("1,2,x", "row 8: value is 'x'"),
    ]:
        with pytest.raises(DataError, match=f"a.csv {why}"):
            read(source(tmp_path / "a.csv", f"query,candidate,value\n{good}{cells}\n"))
    table = pa.table(
        {"query": pa.array([1] * 4 + [2**63], pa.uint64()), "candidate": ["NULL"] * 4 + ["b"]}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet row 5: query is 9223372036854775808"):
        Interactions(sources_of_files(source_files(tmp_path / "a.parquet"), {})).table()


def test_all_sources_have_the_same_columns_and_clock(tmp_path: Path) -> None:
    first = source(tmp_path / "a.csv", "query,candidate,time\n1,2,3\n")
    other = source(tmp_path / "b.csv", "query,candidate\n1,2\n")
    with pytest.raises(DataError, match=r"a.csv has a column 'time' and .*b.csv has none"):
        Interactions([other, first])
    dates = source(tmp_path / "c.csv", "query,candidate,time\n1,2,2020-01-31\n")
    with pytest.raises(DataError, match=r"numbers at .*a.csv row 1 .*, and dates .*c.csv row 1"):
        Interactions([first, dates]).table()
