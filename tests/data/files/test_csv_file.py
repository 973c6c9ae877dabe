"""A CSV is read as a table, and an error names the row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from evergram.data.files.csv_file import read_csv
from evergram.errors import DataError


def test_columns_keep_the_types_that_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('query,note,candidate\n1,"a, b",007\n2,c,8\n')
    kinds = {"query": pa.int64(), "candidate": pa.string()}
    table = read_csv(path, "pairs", types=kinds)
    assert table.to_pydict() == {"query": [1, 2], "candidate": ["007", "8"]}
    assert read_csv(path.read_bytes(), "pairs", types=kinds).equals(table)


def test_without_a_header_types_name_the_columns_and_quotes_are_letters() -> None:
    types = {"query": pa.string(), "candidate": pa.string()}
    table = read_csv(b'1\t"a\n', "pairs", delimiter="\t", types=types, header=False)
    assert table.to_pydict() == {"query": ["1"], "candidate": ['"a']}


def test_a_line_with_too_many_cells_is_named() -> None:
    with pytest.raises(DataError, match=r"pairs row 2 .*3 cells"):
        read_csv(b"query,candidate\n1,2\n1,2,3\n", "pairs")
