"""Files with one object a line: read in blocks, whatever writes them, and errors by row."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evergram.data.files import json_lines
from evergram.data.files.json_lines import blocks, read_lines, read_objects, short
from evergram.errors import DataError

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("stars", pa.float64())])


def convert(record: dict[str, Any]) -> dict[str, Any]:
    if not record.get("id"):
        raise ValueError(f"id is {short(record.get('id'))}")
    return {"id": str(record["id"]), "stars": record.get("stars")}


def rows(path: Path) -> list[tuple[str, float | None]]:
    tables = read_objects(path, SCHEMA, convert)
    return [(row["id"], row["stars"]) for table in tables for row in table.to_pylist()]


@pytest.mark.parametrize("packed", [False, True])
def test_json_and_python_dictionaries_give_the_same_rows(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "objects"
    for text in (
        '{"id": "a", "stars": 2.5, "note": [1]}\n\n{"id": "b"}\n',
        "{'id': 'a', 'stars': 2.5, 'note': None}\n\n{'id': 'b'}",
        '{"id": "a", "stars": 2.5, "note": 1}\n{"id": "b", "stars": null, "note": "text"}',
    ):
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        assert rows(path) == [("a", 2.5), ("b", None)]


def test_the_row_of_a_fault_is_counted_over_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "BLOCK", 40)
    path = tmp_path / "objects.json"
    lines = [f'{{"id": "{i}"}}' for i in range(20)]
    path.write_text("\n".join(lines))
    assert [row for row, _ in blocks(path)][:3] == [1, 4, 7]
    assert b"\n".join(block for _, block in blocks(path)).decode().split("\n") == lines
    assert [row[0] for row in rows(path)] == [str(i) for i in range(20)]
    for line, words in (('{"id": ""}', "id is ''"), ("[1]", "the line is b'[1]'; it must be one")):
        path.write_text("\n".join([*lines[:9], line, *lines[9:]]))
        with pytest.raises(
            DataError, match=r"objects\.json row 10: .*; correct or remove it"
        ) as caught:
            rows(path)
        assert words in str(caught.value)
    path.write_text("\n".join([*lines[:4], "x" * 90]))
    with pytest.raises(DataError, match=r"row 5 is longer than 0 MiB; write one object a line"):
        rows(path)


def test_a_cut_gzip_is_named_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "objects.json.gz"
    path.write_bytes(gzip.compress(b'{"id": "a"}\n' * 9)[:-9])
    with pytest.raises(DataError, match=r"gz row \d+ cannot be read: .*; fetch the file again"):
        rows(path)


def test_lines_of_a_small_file_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes("a\n\né\n".encode())
    assert read_lines(path) == ["a", "", "é"]
    path.write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(DataError, match=r"names\.txt row 3 is not UTF-8"):
        read_lines(path)


def test_a_long_value_is_cut_in_an_error() -> None:
    assert short("ab") == "'ab'"
    assert short("a" * 100) == "'" + "a" * 59 + "…"
