"""Features in text that are streamed are those of a file that is read whole."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.prepared.sources import table_stream
from evergram.data.prepared.sources.source_files import SourceFile
from evergram.data.prepared.sources.text_features import TextFeatures
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


def streamed(path: Path) -> pa.Table:
    features = TextFeatures(SourceFile(str(path), str(path)))
    return pa.Table.from_batches(features.batches(), features.schema)


@settings(max_examples=200, deadline=None)
@given(
    ids=IDS.flatmap(lambda some: st.lists(st.sampled_from(some), min_size=12, max_size=12)),
    columns=st.lists(CELLS, min_size=1, max_size=3),
    block=st.sampled_from([120, 1 << 20]),
)
def test_any_table_is_the_one_that_is_read_whole(
    ids: list[str], columns: list[list[str]], block: int
) -> None:
    lines = [",".join(["id", *(f"c{i}" for i in range(len(columns)))])]
    lines += [",".join(row) for row in zip(ids, *columns, strict=True)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "f.csv"
        path.write_text("\n".join(lines) + "\n")
        patch.setattr(table_stream, "BLOCK", block)
        try:
            whole = read_features(path)
        except DataError:
            whole = pa.table({"id": [1.5]})
        if pa.types.is_floating(whole["id"].type):  # which is no type of ids
            with pytest.raises(DataError):
                streamed(path)
            return
        table = streamed(path)
        assert table.schema == whole.schema
        assert str(table.to_pydict()) == str(whole.to_pydict())  # NaN is not itself


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
    table = streamed(path)
    assert table.equals(read_features(path).combine_chunks())
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
        streamed(tmp_path / "f.csv")


def test_a_table_without_rows_or_ids_has_its_columns(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("id,x\n")
    assert streamed(tmp_path / "f.csv").schema.names == ["id", "x"]
    (tmp_path / "f.csv").write_text("key,x\n1,2\n")
    assert streamed(tmp_path / "f.csv").to_pylist() == [{"key": 1, "x": 2}]
