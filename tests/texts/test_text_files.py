"""Ids and texts from every format, and what is no text or no id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from evergram.errors import DataError
from evergram.texts.text_files import read_texts

TEXTS = ["one, with a comma", 'a "quoted" one', "two\nlines"]


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "t.csv", "t.jsonl"])
def test_every_format_gives_the_same(name: str, tmp_path: Path) -> None:
    path, table = tmp_path / name, pa.table({"id": [3, 1, 2], "text": TEXTS})
    if name == "t.parquet":
        pq.write_table(table, path)
    elif name == "t.feather":
        feather.write_feather(table, path)
    elif name == "t.jsonl":
        path.write_text(table.to_pandas().to_json(orient="records", lines=True) + "\n\n")
    else:
        table.to_pandas().to_csv(path, index=False)
    ids, texts = read_texts(path)
    assert ids.to_pylist() == [3, 1, 2]
    assert texts == TEXTS


def test_ids_of_text_keep_their_form(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key,body,more\n007,NULL,1\n008,b,2\n")
    ids, texts = read_texts(path, id_column="key", text_column="body")
    assert ids.to_pylist() == ["007", "008"]
    assert texts == ["NULL", "b"]
    for quote in ["", '"']:
        for keys in [["1.10", "1.1", "2.20"], ["1e5", "23e4"]]:
            path.write_text("id,text\n" + "".join(f"{quote}{key}{quote},a text\n" for key in keys))
            assert read_texts(path)[0].to_pylist() == keys


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    columns: list[dict[str, Any]] = [
        {"id": [1.5], "text": ["a"]},
        {"id": [1], "text": [2]},
        {"id": pa.nulls(0), "text": pa.nulls(0)},
        {"id": pa.array([1, 2**63], pa.uint64()), "text": ["a", "b"]},
    ]
    for name, content, words in [
        ("t.xlsx", "", "of no known format"),
        ("absent.csv", None, "There is no file"),
        ("t.csv", "id,text\n1,a\n1,b\n", "the id 1 twice"),
        ("t.csv", "id,text\n1,a\n2,\n", "row 2: text has no text"),
        ("t.csv", "id,text\n,a\n", "id is empty"),
        ("t.csv", "id,body\n1,a\n", "no column 'text'; it has id, body"),
        ("t.csv", "id,text\n", "has no rows"),
        ("t.csv", "id,text\n1,a,b\n", "cannot be read"),
        ("t.jsonl", '{"id": 1, "text": "a"}\n{"id": 2}\n', "row 2 is not a JSON object with"),
        ("t.jsonl", '{"id": 1, "text": 5}\n', "row 1: text has no text"),
        ("t.jsonl", '{"id": 1, "text": "a"}\n{"id": "x", "text": "b"}\n', "all integers or all"),
        ("t.parquet", "no parquet", "cannot be read"),
        ("t.parquet", columns[0], "ids are integers or texts"),
        ("t.parquet", columns[1], "it must be text"),
        ("t.parquet", columns[2], "has no rows"),
        ("t.parquet", columns[3], "the integer 9223372036854775808"),
    ]:
        if isinstance(content, str):
            (tmp_path / name).write_text(content)
        elif content is not None:
            pq.write_table(pa.table(content), tmp_path / name)
        with pytest.raises(DataError, match=words):
            read_texts(tmp_path / name)
    wide = pa.table({"id": pa.array([1, 2**63 - 1], pa.uint64()), "text": ["a", "b"]})
    pq.write_table(wide, tmp_path / "t.parquet")
    assert read_texts(tmp_path / "t.parquet")[0].to_pylist() == [1, 2**63 - 1]
