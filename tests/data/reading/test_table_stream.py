"""Any file of a table comes in batches; a damaged one is named with its row."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from evergram.data.reading import table_stream
from evergram.data.reading.source_files import source_files
from evergram.data.reading.table_stream import TableStream
from evergram.errors import DataError

TABLE = pa.table({"query": [1, 2, 3], "other": [None, 0.5, 1.0], "candidate": ["a", "b", "c"]})


def stream(path: Path) -> TableStream:
    return TableStream(source_files([path])[0])


def rows(path: Path, *columns: str) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = pa.Table.from_batches(stream(path).batches(columns)).to_pylist()
    return read


def test_each_format_gives_the_columns_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "t.parquet", row_group_size=2)
    feather.write_feather(TABLE, tmp_path / "t.arrow", compression="zstd")
    for name in ("t.parquet", "t.arrow"):
        expected = TABLE.select(["candidate", "query"]).to_pylist()
        assert rows(tmp_path / name, "candidate", "query") == expected
    text = "query,other,candidate\n1,,a\n2,0.5,b\n3,1.0,\n"
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress(text.replace(",", "\t").encode()))
    (tmp_path / "semicolon.csv").write_text(text.replace(",", ";"))
    for name in ("t.csv", "t.tsv.gz", "semicolon.csv"):
        assert stream(tmp_path / name).names == ["query", "other", "candidate"]
        read = rows(tmp_path / name, "candidate", "query")
        assert [row["query"] for row in read] == ["1", "2", "3"]
        assert [row["candidate"] for row in read] == ["a", "b", None]


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_stream, "ROWS", 2)
    feather.write_feather(TABLE, tmp_path / "t.arrow")
    sizes = [batch.num_rows for batch in stream(tmp_path / "t.arrow").batches(["query"])]
    assert sizes == [2, 1]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"query,candidate\n" + b"1,2\n" * 9 + b"1\n", "row 10 cannot be read"),
        ("a.csv", b"query,candidate\n1,\xff\n", "not in UTF-8"),
        ("a.csv", b"query,query\n1,2\n", "two columns 'query'"),
        ("a.csv", b"7,7,7\n1,2,3\n", "seems to be a row"),
        ("a.csv.gz", gzip.compress(b"query,candidate\n1,2\n" * 99, mtime=0)[:-9], "cannot be read"),
        ("a.csv.gz", b"no gzip", "cannot be read"),
        ("a.parquet", b"no parquet", "cannot be read"),
        ("a.arrow", b"no arrow", "cannot be read"),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=why) as refused:
        rows(tmp_path / name, "query", "candidate")
    assert name in str(refused.value)


@pytest.mark.parametrize("threads", [1, 2])
def test_damage_is_named_with_its_row_whatever_the_threads(tmp_path: Path, threads: int) -> None:
    (tmp_path / "a.csv").write_bytes(b"query,candidate\n" + b"1,2\n" * 9 + b"1\n")
    before = pa.cpu_count()
    pa.set_cpu_count(threads)
    try:
        with pytest.raises(DataError, match="row 10 cannot be read"):
            rows(tmp_path / "a.csv", "query", "candidate")
    finally:
        pa.set_cpu_count(before)


def test_a_gzip_that_expands_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.data.files.decompression.HARMLESS", 1 << 16)
    bomb = b"query,candidate\n" + b"1,2\n" * (1 << 20)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(bomb))
    with pytest.raises(DataError, match="expands to more than"):
        rows(tmp_path / "a.csv.gz", "query")


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_rows_that_a_quotation_mark_took_in_are_missed_in_a_column_that_is_not_read(
    tmp_path: Path, suffix: str
) -> None:
    def write(note: str, end: str) -> Path:
        lines = ["query,candidate,note", "1,2,", f"3,4,{note}", '5,6,"b"', "", '7,8,"c\nd"']
        text = ("\n".join(lines) + end).encode()
        path = tmp_path / f"a{suffix}"
        path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
        return path

    for end in ("\n", ""):
        with pytest.raises(DataError, match="line 3: a quotation mark opens a cell there that"):
            rows(write('"a', end), "query")
        assert rows(write('"a"', end), "query") == [{"query": each} for each in "1357"]
