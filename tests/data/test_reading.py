"""Files, folders and addresses; columns by role; bad cells by row; tables of features."""

from __future__ import annotations

import gzip
import logging
import tempfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.corpus import Corpus
from evergram.data.reading import table_stream
from evergram.data.reading.interaction_source import (
    Interactions,
    InteractionSource,
    sources_of_files,
)
from evergram.data.reading.source_files import SourceFile, source_files
from evergram.data.reading.table_stream import TableStream
from evergram.data.tables import read_features
from evergram.errors import DataError


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def names_of(*sources: str | Path) -> list[str]:
    return [Path(file.path).name for file in source_files(sources)]


def test_a_folder_names_its_tables_alone(tmp_path: Path) -> None:
    fill(tmp_path, "b.parquet", "a.CSV.gz", "_SUCCESS", ".c.csv", "_delta/x.csv", "d/e.tsv", "f.py")
    assert names_of(tmp_path) == ["a.CSV.gz", "b.parquet", "e.tsv"]


def test_globs_and_files_keep_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    fill(tmp_path, "a1.csv", "a2.csv", "b.csv", "d/a3.csv", "[x].csv")
    assert names_of(tmp_path / "b.csv", f"{tmp_path}/a*.csv") == ["b.csv", "a1.csv", "a2.csv"]
    assert names_of(f"{tmp_path}/**/a*.csv") == ["a1.csv", "a2.csv", "a3.csv"]
    assert names_of(tmp_path / "[x].csv") == ["[x].csv"]


def test_addresses_are_read_by_fsspec(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pipe({"/shop/1.csv": b"one", "/shop/2.csv": b"two", "/shop/readme": b""})
    files = source_files(["memory://shop", "memory://shop/*2.csv", "memory://shop/1.csv"])
    assert [file.open().read() for file in files] == [b"one", b"two", b"two", b"one"]
    assert [file.size() for file in files] == [3, 3, 3, 3]
    assert files[-1].name == "memory://shop/1.csv"
    with pytest.raises(DataError, match="no file memory://shop/9"):
        source_files(["memory://shop/9.csv"])
    with pytest.raises(DataError, match="cannot be opened"):
        source_files(["nowhere://shop/9.csv"])


def test_the_suffix_says_how_a_file_is_read() -> None:
    text = SourceFile("A.TSV.GZ", "A.TSV.GZ")
    assert (text.is_text, text.is_gzip, text.is_parquet, text.delimiter) == (
        True,
        True,
        False,
        "\t",
    )
    table = SourceFile("a.pq", "a.pq")
    assert (table.is_text, table.is_gzip, table.is_parquet) == (False, False, True)
    assert SourceFile("tsv.csv", "x.tsv/b.csv").delimiter == ","


def test_a_source_without_tables_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, "d/readme.txt")
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b""))
    for source, why in [
        ("none.csv", "There is no file"),
        ("*.parquet", "No file matches"),
        ("d", "no file of a known format"),
        ("d/readme.txt", "of no known format"),
    ]:
        with pytest.raises(DataError, match=why):
            source_files([f"{tmp_path}/{source}"])
    with pytest.raises(DataError, match="No source"):
        source_files([])


TABLE = pa.table({"query": [1, 2, 3], "other": [None, 0.5, 1.0], "candidate": ["a", "b", "c"]})


def stream(path: Path) -> TableStream:
    return TableStream(source_files([path])[0])


def rows_of(path: Path, *columns: str) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = pa.Table.from_batches(stream(path).batches(columns)).to_pylist()
    return read


def test_each_format_gives_the_columns_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "t.parquet", row_group_size=2)
    feather.write_feather(TABLE, tmp_path / "t.arrow", compression="zstd")
    for name in ("t.parquet", "t.arrow"):
        expected = TABLE.select(["candidate", "query"]).to_pylist()
        assert rows_of(tmp_path / name, "candidate", "query") == expected
    text = "query,other,candidate\n1,,a\n2,0.5,b\n3,1.0,\n"
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress(text.replace(",", "\t").encode()))
    (tmp_path / "semicolon.csv").write_text(text.replace(",", ";"))
    for name in ("t.csv", "t.tsv.gz", "semicolon.csv"):
        assert stream(tmp_path / name).names == ["query", "other", "candidate"]
        read = rows_of(tmp_path / name, "candidate", "query")
        assert [row["query"] for row in read] == ["1", "2", "3"]
        assert [row["candidate"] for row in read] == ["a", "b", None]


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_stream, "ROWS", 2)
    feather.write_feather(TABLE, tmp_path / "t.arrow")
    sizes = [batch.num_rows for batch in stream(tmp_path / "t.arrow").batches(["query"])]
    assert sizes == [2, 1]


def test_damage_is_named(tmp_path: Path) -> None:
    for name, content, why in [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"query,candidate\n" + b"1,2\n" * 9 + b"1\n", "row 10 cannot be read"),
        ("a.csv", b"query,candidate\n1,\xff\n", "not in UTF-8"),
        ("a.csv", b"query,query\n1,2\n", "two columns 'query'"),
        ("a.csv", b"7,7,7\n1,2,3\n", "seems to be a row"),
        ("a.csv.gz", gzip.compress(b"query,candidate\n1,2\n" * 99, mtime=0)[:-9], "cannot be read"),
        ("a.csv.gz", b"no gzip", "cannot be read"),
        ("a.parquet", b"no parquet", "cannot be read"),
        ("a.arrow", b"no arrow", "cannot be read"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=why) as refused:
            rows_of(tmp_path / name, "query", "candidate")
        assert name in str(refused.value)


def test_damage_is_named_with_its_row_whatever_the_threads(tmp_path: Path) -> None:
    for threads in [1, 2]:
        (tmp_path / "a.csv").write_bytes(b"query,candidate\n" + b"1,2\n" * 9 + b"1\n")
        before = pa.cpu_count()
        pa.set_cpu_count(threads)
        try:
            with pytest.raises(DataError, match="row 10 cannot be read"):
                rows_of(tmp_path / "a.csv", "query", "candidate")
        finally:
            pa.set_cpu_count(before)


def source(path: Path, text: str, **columns: str) -> InteractionSource:
    path.write_text(text)
    return sources_of_files(source_files(path), columns)[0]


def read(one: InteractionSource) -> pa.Table:
    return Interactions([one]).table()


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    for text, columns, why in [
        ("user,item\n1,2\n", {}, "--column query=user --column candidate=item"),
        ("foo,bar\n1,2\n", {}, "query=… --column candidate=…"),
        ("1,2\n1,2\n", {}, "seems to be a row"),
        ("query,candidate\n1,2\n", {"value": "stars"}, "no column 'stars'"),
        ("a,b\n1,2\n", {"query": "a", "candidate": "a"}, "both the column 'a'"),
    ]:
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
        ("1,NULL,3", "row 8: candidate is 'NULL'.* this word means a missing value"),
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


# Each is a column's cells of one kind; columns mix two of them.
KINDS = [
    ["1", "-7", "20"],
    ["007", "+5", " 3"],
    ["", ""],
    ["true", "false", "0"],
    ["2020-01-02", "1999-12-31"],
    ["10:20:30"],
    ["2020-01-02 10:20:30"],
    ["2020-01-02 10:20:30.123456"],
    ["1.5", "nan", "2e3"],
    ["x", "é", "NULL", "y"],
    ["x|y", "|", "a|a|b"],
    ["1|2", "9223372036854775808"],
]
CELLS = st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)).flatmap(
    lambda kinds: st.lists(st.sampled_from(kinds[0] + kinds[1]), min_size=12, max_size=12)
)
IDS = st.sampled_from([["1", "2"], ["a", "2"], ["007", "2"], ["1", str(2**63)], ["1.5", "2"], [""]])


@settings(max_examples=40, deadline=None)
@given(
    ids=IDS.flatmap(lambda some: st.lists(st.sampled_from(some), min_size=12, max_size=12)),
    columns=st.lists(CELLS, min_size=1, max_size=3),
    block=st.sampled_from([120, 1 << 20]),
    cut=st.integers(1, 11),
)
def test_two_files_are_what_one_is(
    ids: list[str], columns: list[list[str]], block: int, cut: int
) -> None:
    header = ",".join(["id", *(f"c{i}" for i in range(len(columns)))])
    lines = [",".join(row) for row in zip(ids, *columns, strict=True)]
    parts = {
        "one": [lines],
        "two": [lines[:cut], lines[cut:]],
        "turned": [lines[cut:], lines[:cut]],
    }
    read: list[object] = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_stream, "BLOCK", block)
        for name, files in parts.items():
            (Path(folder) / name).mkdir()
            for number, some in enumerate(files):
                text = "\n".join([header, *some]) + "\n"
                (Path(folder) / name / f"{number}.csv").write_text(text)
            try:
                table = read_features(Path(folder) / name)
            except DataError:
                read.append(DataError)
            else:
                read.append((table.schema, sorted(map(str, table.to_pylist()))))
    assert read[0] == read[1] == read[2]


@pytest.mark.parametrize("suffix", [".tsv", ".csv.gz"])
def test_a_later_block_decides_for_the_whole_column(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = "\t" if suffix == ".tsv" else ","
    rows = [f"{i}{cut}{i}{cut}t{i}{cut}{i}" for i in range(1000)] + [f"z{cut}07{cut}a|b{cut}9"]
    text = "\n".join([cut.join(["id", "zip", "tags", "year"]), *rows]).encode()
    path = tmp_path / f"f{suffix}"
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    monkeypatch.setattr(table_stream, "BLOCK", 256)
    monkeypatch.setattr(table_stream, "ROWS", 7)
    table = read_features(path)
    assert [str(kind) for kind in table.schema.types[:2]] == ["string", "string"]
    assert table["tags"].to_pylist()[-2:] == [["t999"], ["a", "b"]]
    assert table["year"].to_pylist()[-1] == 9


def test_a_bad_row_of_features_is_named(tmp_path: Path) -> None:
    for content, message in [
        ("id,x\n1,2\n,3\n", "row 2: id is empty"),
        ("id,x\n1,2\nNULL,3\n", "row 2: id is 'NULL'"),
        ("id,x\n1,2\n1.5,3\n", "numbers with decimals"),
        ("id,x\n1,2\n3\n", "row 2 cannot be read"),
        ("id,id\n1,2\n", "two columns 'id'"),
    ]:
        (tmp_path / "f.csv").write_text(content)
        with pytest.raises(DataError, match=message):
            read_features(tmp_path / "f.csv")


def test_a_table_without_rows_or_ids_has_its_columns(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("id,x\n")
    assert read_features(tmp_path / "f.csv").schema.names == ["id", "x"]
    (tmp_path / "f.csv").write_text("key,x\n1,2\n")
    with pytest.raises(DataError, match="no column 'id'"):
        read_features(tmp_path / "f.csv")


INT, FLOAT, TEXT = pa.array([1], pa.int32()), pa.array([0.5]), pa.array(["x"])
DAY = INT.cast(pa.date32())


def test_types_are_widened_without_loss_or_both_are_named(tmp_path: Path) -> None:
    for first, second, kind in [
        (INT, pa.array([2**40]), pa.int64()),
        (INT, FLOAT, pa.float64()),
        (INT, TEXT, pa.string()),
        (TEXT, TEXT.dictionary_encode(), pa.string()),
        (pa.array([[1]]), pa.array([["a"]]), pa.list_(pa.string())),
        (pa.array([None]), FLOAT, pa.float64()),
        (DAY, DAY.cast(pa.timestamp("ms")), pa.timestamp("us")),
        (FLOAT, TEXT, None),
        (pa.array([True]), INT, None),
        (pa.array([2**60 + 1]), FLOAT, None),
        (pa.array([0], pa.timestamp("s")), pa.array([0], pa.timestamp("s", "UTC")), None),
    ]:
        for one, other in ((first, second), (second, first)):
            pq.write_table(pa.table({"id": [1], "x": one}), tmp_path / "a.parquet")
            pq.write_table(pa.table({"id": [2], "x": other}), tmp_path / "b.parquet")
            if kind is None:
                with pytest.raises(DataError, match=r"column 'x'.* type"):
                    read_features(tmp_path)
            else:
                assert read_features(tmp_path)["x"].type == kind


def corpus(query: list[Any], candidate: list[Any], **columns: list[Any]) -> Corpus:
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate, **columns}))


def test_times_of_any_clock_are_wide_numbers() -> None:
    for kind in [pa.int32(), pa.uint32(), pa.timestamp("ns"), pa.float32(), pa.float16()]:
        data = corpus([1, 2], [1, 1], time=pa.array([3000, 1500]).cast(kind))
        assert data.queries.vocabulary.keys.to_pylist() == [2, 1]
        wide = torch.float64 if pa.types.is_floating(kind) else torch.int64
        assert data.column("time").dtype == wide


def test_a_value_may_be_a_large_count_but_not_larger_than_float32() -> None:
    assert corpus([1], [1], value=[2**24 + 1]).column("value").tolist() == [2.0**24]
    with pytest.raises(DataError, match=r"row 2: value is (inf|1e)"):
        corpus([1, 2], [1, 2], value=[1.0, 1e300])


def test_a_bad_number_is_named_by_its_row() -> None:
    cases: list[Any] = [
        ({"value": [1.0, float("nan"), 2.0]}, "row 2: value is nan"),
        ({"value": [1.0, 2.0, float("inf")]}, "row 3: value is inf"),
        ({"time": [1, None, 2]}, "row 2: time is empty"),
        ({"value": ["a", "b", "c"]}, "must be a number"),
        ({"weight": [1, 1, -1]}, "row 3: weight is -1"),
    ]
    for columns, message in cases:
        with pytest.raises(DataError, match=message):
            corpus([1, 2, 3], [1, 2, 3], **columns)


def test_bad_ids_and_tables_are_refused() -> None:
    with pytest.raises(DataError, match="row 2: query is empty"):
        corpus([1, None], [1, 2])
    with pytest.raises(DataError, match="integers or strings"):
        corpus([1.5, 2.5], [1, 2])
    with pytest.raises(DataError, match="no rows"):
        corpus([], [])
    with pytest.raises(DataError, match="no column 'candidate'"):
        Corpus.from_tables(pa.table({"query": [1]}))
    with pytest.raises(DataError, match=r"row 2: candidate is 9223372036854775808; .* below 2⁶³"):
        Corpus.of({"query": [1, 2], "candidate": np.array([2**63 - 1, 2**63], np.uint64)})
