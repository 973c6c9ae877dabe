"""Tables of features: one set of types, whatever the files."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.reading import table_stream
from evergram.data.tables import read_features
from evergram.errors import DataError

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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,x\n1,2\n,3\n", "row 2: id is empty"),
        ("id,x\n1,2\nNULL,3\n", "row 2: id is 'NULL'"),
        ("id,x\n1,2\n1.5,3\n", "numbers with decimals"),
        ("id,x\n1,2\n3\n", "row 2 cannot be read"),
        ("id,id\n1,2\n", "two columns 'id'"),
    ],
)
def test_damage_is_named(content: str, message: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
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
    ],
)
def test_types_are_widened_without_loss_or_both_are_named(
    first: pa.Array, second: pa.Array, kind: pa.DataType | None, tmp_path: Path
) -> None:
    for one, other in ((first, second), (second, first)):
        pq.write_table(pa.table({"id": [1], "x": one}), tmp_path / "a.parquet")
        pq.write_table(pa.table({"id": [2], "x": other}), tmp_path / "b.parquet")
        if kind is None:
            with pytest.raises(DataError, match=r"column 'x'.* type"):
                read_features(tmp_path)
        else:
            assert read_features(tmp_path)["x"].type == kind


def test_all_files_have_the_same_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [2], "x": [1], "more": [2]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b.parquet has a column 'more' and .*a.parquet has none"):
        read_features(tmp_path)
