"""Tables in files and in memory: columns by role, bad cells by row, tables of features."""

from __future__ import annotations

import gzip
import logging
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.prepared import assert_same, bags_of, pairs_of

from evergram import ids as ids_module
from evergram.data import Corpus, load_table
from evergram.data.reading import files as reading
from evergram.data.reading.files import TableStream, guess, source_files
from evergram.data.reading.interactions import read_keyed_files
from evergram.data.tables import read_interactions, read_keyed
from evergram.errors import DataError
from evergram.ids import NOTHING, refuse_repeats


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_folders_globs_and_files_name_tables_in_order(tmp_path: Path) -> None:
    fill(tmp_path, "b.parquet", "a.CSV.gz", "_SUCCESS", ".c.csv", "_delta/x.csv", "d/e.tsv", "f.py")
    fill(tmp_path, "_g/a1.csv", "_g/a2.csv", "_g/b.csv", "_g/d/a3.csv", "_g/[x].csv")
    for sources, names in [
        (["."], ["a.CSV.gz", "b.parquet", "e.tsv"]),
        (["_g/b.csv", "_g/a*.csv"], ["b.csv", "a1.csv", "a2.csv"]),
        (["_g/**/a*.csv"], ["a1.csv", "a2.csv", "a3.csv"]),
        (["_g/[x].csv"], ["[x].csv"]),
    ]:
        found = source_files([tmp_path / source for source in sources])
        assert [Path(file.path).name for file in found] == names
    for source, why in [
        ("none.csv", "There is no file"),
        ("*.pq", "No file matches"),
        ("_delta", "no file in a supported format"),
        ("f.py", "has an unsupported format"),
    ]:
        (tmp_path / "_delta" / "x.csv").unlink(missing_ok=True)
        with pytest.raises(DataError, match=why):
            source_files(f"{tmp_path}/{source}")
    with pytest.raises(DataError, match="No source"):
        source_files([])


def test_addresses_are_read_by_fsspec() -> None:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pipe({"/shop/1.csv": b"one", "/shop/2.csv": b"two", "/shop/readme": b""})
    files = source_files(["memory://shop", "memory://shop/*2.csv", "memory://shop/1.csv"])
    assert [file.open().read() for file in files] == [b"one", b"two", b"two", b"one"]
    assert [file.size() for file in files] == [3, 3, 3, 3]
    assert files[-1].name == "memory://shop/1.csv"
    for address, why in [("memory://shop/9.csv", "no file memory://shop/9"), ("no://x", "opened")]:
        with pytest.raises(DataError, match=why):
            source_files(address)


TABLE = pa.table({"user": ["a", "b"], "other": [None, 0.5], "candidate": [1, 2], "time": [2, 1]})
TEXT = "user,other,candidate,time\na,,1,2\nb,0.5,2,1\n"
FORMATS = {
    **{"t.csv": TEXT, "t.tsv": TEXT.replace(",", "\t"), "t.csv.gz": TEXT, "comma.tsv": TEXT},
    **{"semicolon.csv": TEXT.replace(",", ";"), "tab.csv": TEXT.replace(",", "\t")},
    **{"semicolon.csv.gz": TEXT.replace(",", ";"), "t.parquet": "", "t.arrow": ""},
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_table_format(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, text = tmp_path / name, FORMATS[name].encode()
    if path.suffix == ".parquet":
        pq.write_table(TABLE, path, row_group_size=1)
    elif path.suffix == ".arrow":
        feather.write_feather(TABLE, path, compression="zstd")
    else:
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    corpus = load_table(path, columns={"query": "user"})
    assert pairs_of(corpus) == [("b", 2), ("a", 1)]
    assert set(corpus.interactions.column_names) == {"query", "candidate", "time"}
    monkeypatch.setattr(reading, "ROWS", 1)
    stream = TableStream(source_files(path)[0])
    assert stream.names == TABLE.column_names
    batches = list(stream.batches(["other", "user"]))
    assert [batch.num_rows for batch in batches] == [1, 1]
    cells = pa.Table.from_batches(batches)
    assert (cells["user"].to_pylist(), cells["other"].null_count) == (["a", "b"], 1)


MANY = 300_000  # lines: several of Arrow's blocks of 1 MiB
HEAD = b"query,candidate,value\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"", "is empty"),
        ("x.csv", HEAD + b"1,2,3\n1,\xff,3\n", "not in UTF-8"),
        ("x.csv", b"query,candidate,candidate\n1,2,3\n", "two columns 'candidate'"),
        ("x.csv", b"7,7,7\n1,2,3\n", "add a header line if a"),
        ("x.csv", b"query,item\n1,2\n", "no column 'candidate'"),
        ("x.csv", HEAD + b"1,2,3.5\n1,3,NaN\n", "row 2: value is 'NaN'"),
        ("x.csv", HEAD + b"1,2,3\n,3,1\n", "row 2: query is empty"),
        ("x.csv", HEAD + b"1,2,3\n1,NULL,1\n", "row 2: candidate is 'NULL'.* missing value"),
        ("x.csv", HEAD + b"1,2,3\n1,3,\n", "row 2: value is empty"),
        ("x.csv", HEAD + b"17.0,2,3\n18.0,3,3\n", "row 1: query is '17.0'; .* without decimals"),
        ("x.csv", HEAD + b"1,2,3\n" * MANY + b"1,2,good\n", f"row {MANY + 1}: value is 'good'"),
        ("x.csv", HEAD.replace(b"value", b"time") + b"1,2,5\n1,3,soon\n", "row 2: time is 'soon'"),
        ("x.csv.gz", gzip.compress(HEAD + b"1,2,3\n" * 99, mtime=0)[:-9], "cannot be read"),
        ("x.csv.gz", b"no gzip", "cannot be read"),
        ("x.parquet", b"not parquet", "cannot be read"),
        ("x.arrow", b"not arrow", "cannot be read"),
        ("x.xlsx", b"?", "an unsupported format"),
    ],
    ids=range(17),
)
def test_a_table_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load_table(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_row_in_the_file_is_counted_over_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ROWS", 3)
    queries = pa.array([1] * 7 + [None])
    pq.write_table(pa.table({"query": queries, "candidate": ["NULL"] * 8}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet row 8: query is empty"):
        load_table(tmp_path / "a.parquet")


def test_which_columns_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.csv"
    path.write_text("query,candidate\n1,2\n")
    swapped = read_interactions(path, {"query": "candidate", "candidate": "query"})
    assert swapped.to_pylist() == [{"query": 2, "candidate": 1}]
    for text, columns, why in [
        ("user,item\n1,2\n", {}, "--column query=user --column candidate=item"),
        ("query,candidate\n1,2\n", {"value": "stars"}, "no column 'stars'"),
        ("query,candidate\n1,2\n", {"user": "query"}, "column role 'user' is unknown"),
    ]:
        path.write_text(text)
        with pytest.raises(DataError, match=why):
            load_table(path, columns=columns)
    path.write_text("query,candidate,timestamp\n1,2,3\n")
    with caplog.at_level(logging.WARNING):
        load_table(path)
    assert "--column time=timestamp" in caplog.text


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
    read: list[object] = []
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK", block)
        for files in ([lines], [lines[:cut], lines[cut:]], [lines[cut:], lines[:cut]]):
            folder = Path(name) / str(len(read))
            folder.mkdir()
            for number, some in enumerate(files):
                (folder / f"{number}.csv").write_text("\n".join([header, *some]) + "\n")
            try:
                table = read_keyed_files(folder)
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
    monkeypatch.setattr(reading, "BLOCK", 256)
    monkeypatch.setattr(reading, "ROWS", 7)
    table = read_keyed_files(path)
    assert [str(kind) for kind in table.schema.types[:2]] == ["string", "string"]
    assert table["tags"].to_pylist()[-2:] == [["t999"], ["a", "b"]]
    assert table["year"].to_pylist()[-1] == 9
    path.write_bytes(b"query,candidate,value\n" + b"1,2,3\n" * 99 + b"A1,2,3.5\n")
    interactions = read_interactions(path.rename(tmp_path / "x.csv"))
    assert (interactions["query"].type, interactions["value"][-1].as_py()) == (pa.string(), 3.5)


def test_features_that_cannot_be_used(tmp_path: Path) -> None:
    for content, message in [
        ("id,x\n1,2\n,3\n", "row 2: id is empty"),
        ("id,x\n1,2\nNULL,3\n", "row 2: id is 'NULL'"),
        ("id,x\n1,2\n3\n", "cannot be read: CSV parse error"),
        ("id,id\n1,2\n", "two columns 'id'"),
        ("key,x\n1,2\n", "no column 'id'"),
        ('id,x\na,"one\nb,"two"\nc,three\n', "line 2: a quoted cell is not closed"),
    ]:
        (tmp_path / "f.csv").write_text(content)
        (tmp_path / "f.csv.gz").write_bytes(gzip.compress(content.encode()))
        for name in ("f.csv", "f.csv.gz"):
            with pytest.raises(DataError, match=message):
                read_keyed_files(tmp_path / name)
    (tmp_path / "f.csv").write_text("id,x\n")
    assert read_keyed_files(tmp_path / "f.csv").schema.names == ["id", "x"]


INT, FLOAT, WORD = pa.array([1], pa.int32()), pa.array([0.5]), pa.array(["x"])


def test_types_are_widened_without_loss_or_both_are_named(tmp_path: Path) -> None:
    for first, second, kind in [
        (INT, pa.array([2**40]), pa.int64()),
        (INT, FLOAT, pa.float64()),
        (INT, WORD, None),
        (WORD, WORD.dictionary_encode(), pa.string()),
        (pa.array([None]), FLOAT, pa.float64()),
        (FLOAT, WORD, None),
        (pa.array([True]), INT, None),
        (pa.array([2**60 + 1]), FLOAT, None),
        (pa.array([0], pa.timestamp("s")), pa.array([0], pa.timestamp("s", "UTC")), None),
    ]:
        for one, other in ((first, second), (second, first)):
            pq.write_table(pa.table({"id": [1], "x": one}), tmp_path / "a.parquet")
            pq.write_table(pa.table({"id": [2], "x": other}), tmp_path / "b.parquet")
            if kind is None:
                with pytest.raises(DataError, match=r"have incompatible types in a column"):
                    read_keyed_files(tmp_path)
            else:
                assert read_keyed_files(tmp_path)["x"].type == kind


def test_what_divides_keys_and_which_texts_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("query,candidate\n007,5\n7,6\n")
    (tmp_path / "f.csv").write_text("id,tags\n5,a|b\n6,\n")
    corpus = load_table(tmp_path / "x.csv", candidate_features=tmp_path / "f.csv")
    assert bags_of(corpus.candidates, "tags") == {5: ["a", "b"], 6: []}
    table = pa.table({"id": [5], "title": ["Either|Or"], "tags": [["a", "b"]]})
    pq.write_table(table, tmp_path / "f.parquet")  # only text has separators
    (tmp_path / "g.csv").write_text("id,zip,size\n007,00017,1\n7,17,2\n")
    corpus = load_table(
        tmp_path / "x.csv",
        candidate_features=tmp_path / "f.parquet",
        query_features=tmp_path / "g.csv",
    )
    assert bags_of(corpus.candidates, "title") == {5: ["Either|Or"], 6: []}
    assert bags_of(corpus.candidates, "tags") == {5: ["a", "b"], 6: []}
    assert bags_of(corpus.queries, "zip") == {"007": ["00017"], "7": ["17"]}
    assert bags_of(corpus.queries, "size") == {"007": [1], "7": [2]}
    (tmp_path / "x.csv").write_text("query,candidate\n1,a\n2,1\n")
    assert pairs_of(load_table(tmp_path / "x.csv", shared_ids=True)) == [("1", "a"), ("2", "1")]


def test_a_file_by_id_has_each_id_once_and_no_other_kind(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text("id;weight\n0017;2\n18;3\n")
    ids, weights = read_keyed(path, "weight")
    assert (ids.to_pylist(), weights.to_pylist()) == (["0017", "18"], [2, 3])
    for text, message in (
        ("id,weight\n1,2\n1,3\n", "1 ids are repeated, such as 1;"),
        ("id,weight\n1,2\nnull,3\n", "row 2: id is 'null'"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_keyed(path, "weight")


# A word for nothing is refused in a CSV alone, which other tests show.
CELL = st.text(
    st.characters(codec="utf-8", exclude_characters='\r\n",\x00'), min_size=1, max_size=5
).filter(lambda text: re.match(NOTHING, text) is None)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(CELL, st.integers(0, 9)), min_size=1, max_size=20))
def test_csv_and_parquet_say_the_same(rows: list[tuple[str, int]]) -> None:
    # One id that is a word, so that CSV cannot take a column of digits for numbers.
    query, candidate = zip(("word", 0), *rows, strict=True)
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({"query": query, "candidate": candidate})
        pq.write_table(table, Path(folder) / "x.parquet")
        lines = [f"{q},{c}\n" for q, c in zip(query, candidate, strict=True)]
        (Path(folder) / "x.csv").write_text("query,candidate\n" + "".join(lines), "utf-8")
        one, two = (load_table(Path(folder) / name) for name in ("x.parquet", "x.csv"))
    assert_same(one, two)


@pytest.mark.parametrize(
    "kind", [pa.int32(), pa.uint32(), pa.timestamp("ns"), pa.float32(), pa.float16()]
)
def test_times_of_any_clock_are_wide_numbers(kind: pa.DataType) -> None:
    times = pa.array([3000, 1500]).cast(kind)
    data = Corpus.of({"query": [1, 2], "candidate": [1, 1], "time": times})
    assert data.queries.vocabulary.keys.to_pylist() == [2, 1]
    wide = torch.float64 if pa.types.is_floating(kind) else torch.int64
    assert data.column("time").dtype == wide


def test_a_bad_cell_is_named_by_its_row() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"value": [1.0, 2.0, float("inf")]}, "row 3: value is inf"),
        ({"value": [1.0, 1e300, 2.0]}, r"row 2: value is (inf|1e)"),
        ({"time": [1, None, 2]}, "row 2: time is empty"),
        ({"weight": [1, 1, -1]}, "row 3: weight is -1"),
        ({"query": [1.5, 2.5, 3.5]}, "integers or strings"),
    ]
    for columns, message in cases:
        with pytest.raises(DataError, match=message):
            Corpus.of({"query": [1, 2, 3], "candidate": [1, 2, 3]} | columns)
    # A value may be a count that float32 rounds.
    large = Corpus.of({"query": [1], "candidate": [1], "value": [2**24 + 1]})
    assert large.column("value").tolist() == [2.0**24]


def test_usual_names_are_known() -> None:
    for names, roles in [
        ("userId,movieId,rating,timestamp", "userId,movieId,rating,timestamp"),
        ("reviewerID,asin,overall,unixReviewTime",) * 2,
        ("session_id,product_name,ts", "session_id,product_name,,ts"),
        ("id,when", ",,,"),
        ("1,31,2.5,1260759144", ",,,"),
        ("user,17", "user,,,"),
    ]:
        expected = zip(("query", "candidate", "value", "time"), roles.split(","), strict=True)
        assert guess(names.split(",")) == {role: name for role, name in expected if name}


def test_the_error_about_missing_columns_gives_the_line_to_write(tmp_path: Path) -> None:
    def refusal(names: str, columns: dict[str, str] | None = None, suffix: str = ".csv") -> str:
        path = tmp_path / f"x{suffix}"
        if suffix == ".csv":
            path.write_text(f"{names}\n1,2,3\n")
        else:
            pq.write_table(pa.table([pa.array([1])] * 2, names.split(",")), path)
        with pytest.raises(DataError) as caught:
            load_table(path, columns=columns)
        return str(caught.value)

    line = re.search(r"columns = .*$", refusal("User ID,a item,stars"))
    assert line is not None
    columns = tomllib.loads(line[0])["columns"]
    assert columns == {"query": "User ID", "candidate": "…", "value": "stars"}
    # What is written already stays.
    chosen = refusal("a,item,b", {"query": "a"})
    assert tomllib.loads(chosen[chosen.index("columns = {") :])["columns"]["query"] == "a"
    assert "If this is a row" in refusal("1,31,2.5")
    assert "If this is a row" in refusal("Aruba,Ant,x")
    for sentence in (
        refusal("Aruba,Ant,x", {"query": "Aruba"}),  # a person named one of them
        refusal("user,thing,x"),  # one is a usual name
        refusal("0,1", suffix=".parquet"),  # Parquet always has names
    ):
        assert "row" not in sentence


ROWS = [("00017", 3, 2.0, 50), ("b", 1, 1.0, 20), ("00017", 1, 0.5, 20), ("c", 3, 4.0, 10)]
COLUMNS = {
    name: [row[i] for row in ROWS]
    for i, name in enumerate(("query", "candidate", "weight", "time"))
}


MAKERS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pd.DataFrame,
    "pandas categories": lambda c: pd.DataFrame(c).astype({"query": "category"}),
    "pandas indexed": lambda c: pd.DataFrame(c, index=range(90, 90 + len(c["query"]))),
    "polars": pl.DataFrame,
    "polars lazy": pl.LazyFrame,
    "polars categories": lambda c: pl.DataFrame(c).cast({"query": pl.Categorical}),
    "arrow": pa.table,
    "arrow batch": pa.RecordBatch.from_pydict,
    "columns": dict,
    "numpy columns": lambda c: {n: np.array(v) for n, v in c.items()},
    "polars columns": lambda c: {n: pl.Series(v) for n, v in c.items()},
    "mappings": lambda c: [dict(zip(c, row, strict=True)) for row in zip(*c.values(), strict=True)],
    "tuples": lambda c: list(zip(*c.values(), strict=True)),
    "named tuples": lambda c: list(pd.DataFrame(c).itertuples()),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_of_table_is_read_as_its_file(kind: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(COLUMNS), tmp_path / "rows.parquet")
    corpus = Corpus.of(MAKERS[kind](COLUMNS))
    assert_same(corpus, load_table(tmp_path / "rows.parquet"))
    assert corpus.queries.vocabulary.keys.to_pylist() == ["c", "b", "00017"]
    assert corpus.column("weight").tolist() == [4.0, 1.0, 0.5, 2.0]
    if kind != "tuples":  # whose places say which column is which
        renamed = {"user": COLUMNS["query"], "query": COLUMNS["candidate"], "t": COLUMNS["time"]}
        names: dict[str, Any] = {"query": "user", "candidate": "query", "time": "t"}
        maker = MAKERS[kind if "categories" not in kind else "pandas"]
        other = Corpus.of(maker(renamed | {"stars": [1, 2, 3, 4]}), value="stars", **names)
        assert pairs_of(other) == pairs_of(corpus)
        assert other.column("value").tolist() == [4, 2, 3, 1]


@pytest.mark.parametrize("make", [sp.csr_matrix, sp.csr_array, sp.coo_array, sp.csc_matrix])
def test_a_sparse_matrix_has_a_pair_for_each_entry(make: Callable[..., Any]) -> None:
    corpus = Corpus.of(make(np.array([[0, 2, 0], [0, 0, 0], [3, 0, 1]])))
    weights = dict(zip(pairs_of(corpus), corpus.column("weight").tolist(), strict=True))
    assert weights == {(0, 1): 2.0, (2, 0): 3.0, (2, 2): 1.0}


def test_a_matrix_of_ones_has_no_weight_and_stored_zeros_are_no_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("pandas", "polars"):  # which need not be installed
        monkeypatch.setitem(sys.modules, name, None)
    matrix = sp.csr_array(np.array([[1, 1], [0, 1]]))
    matrix.data[1] = 0
    corpus = Corpus.of(matrix)
    assert corpus.interactions.column_names == ["query", "candidate"]
    assert pairs_of(corpus) == [(0, 0), (1, 1)]


def test_features_and_times_in_frames() -> None:
    corpus = Corpus.of(
        [("a", 1), ("b", 2)],
        candidate_features=pl.DataFrame({"id": [2, 1], "tags": [["x", "y"], ["x"]]}),
        query_features=pd.DataFrame({"id": ["a", "b"], "city": ["Rome", "Oslo"]}),
    )
    assert bags_of(corpus.candidates, "tags") == {1: ["x"], 2: ["x", "y"]}
    assert bags_of(corpus.queries, "city") == {"a": ["Rome"], "b": ["Oslo"]}
    frame = pd.DataFrame({"query": [1, 2], "candidate": [5, 5]})
    frame["time"] = pd.to_datetime(["2020-01-02", "2020-01-01"])
    assert pairs_of(Corpus.of(frame)) == [(2, 5), (1, 5)]
    assert_same(Corpus.of(pl.DataFrame(frame.to_dict("list"))), Corpus.of(frame))


def test_errors_name_the_row_and_the_remedy() -> None:
    for data, message in [
        (pd.DataFrame({"query": [1, None], "candidate": [1, 2]}), "'query' is double.*integers"),
        (pd.DataFrame({"query": ["a", None], "candidate": [1, 2]}), "row 2: query is empty"),
        (
            pd.DataFrame({"query": ["a", 1], "candidate": [1, 2]}),
            "values of one type",
        ),
        (pl.DataFrame({"query": ["a", ""], "candidate": [1, 2]}), "row 2: query is empty"),
        (pl.DataFrame({"user_id": [1], "item": [2]}), "'query', 'candidate'; its columns are: us"),
        (pd.DataFrame([[1, 2]], columns=["query", "query"]), "two columns 'query'"),
        ([(1, 2), (1, 2, 3)], r"row 2 is \(1, 2, 3\); it must be a tuple of 2 values"),
        ([(1, 2), ("b", 3)], "column 'query': .*values of one type"),
        ([(2**70, 2)], "values of one type"),
        ([(1,)], "tuples of 1 values; they must be"),
        ([], "The list has no rows; at least one interaction is needed"),
        (pd.Series([1, 2]), "A Series is not a supported table; give a DataFrame"),
        ("rows.csv", "A str is not a supported table"),
        (sp.csr_array((2, 2)), "The matrix has no rows"),
        ([{"query": 1, "candidate": 2}, {"query": 1}], "row 2: candidate is empty"),
        (list(pd.DataFrame({"user": [1]}).itertuples()), "its columns are: Index, user"),
    ]:
        with pytest.raises(DataError, match=message) as caught:
            Corpus.of(data)
        assert "\n" not in str(caught.value)


def test_a_role_in_the_name_of_a_folder_is_refused(tmp_path: Path) -> None:
    """Its times would be left out without a word."""
    folder = tmp_path / "time=2024-05-31"
    folder.mkdir()
    pq.write_table(pa.table({"query": [1], "candidate": [2]}), folder / "x.parquet")
    with pytest.raises(DataError, match="folder time=… is not read as a column; add a column time"):
        read_interactions(tmp_path)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 3))
def test_repeated_ids_are_counted_in_any_number_of_chunks(ids: list[int], size: int) -> None:
    repeats = sum(ids.count(i) > 1 for i in set(ids))
    for kind in (pa.int64(), pa.string()):
        chunks = [pa.array(ids[i : i + size]).cast(kind) for i in range(0, len(ids), size)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ids_module, "AT_ONCE", 4)
            if not repeats:
                refuse_repeats(pa.chunked_array(chunks, kind), "x")
                continue
            with pytest.raises(DataError, match=rf"^x: {repeats} ids are repeated, such as"):
                refuse_repeats(pa.chunked_array(chunks, kind), "x")
