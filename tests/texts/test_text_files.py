"""Ids and texts from every format, and what is no text or no id."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from evergram.errors import DataError
from evergram.texts.text_files import read_texts

TEXTS = ["one, with a comma", 'a "quoted" one', "two\nlines"]
TABLE = pa.table({"id": [3, 1, 2], "text": TEXTS})


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "t.csv", "t.jsonl"])
def test_every_format_gives_the_same(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    quoted = ['"' + t.replace('"', '""') + '"' for t in TEXTS]
    cells = list(zip(["3", "1", "2"], quoted, strict=True))
    if name == "t.parquet":
        pq.write_table(TABLE, path)
    elif name == "t.feather":
        feather.write_feather(TABLE, path)
    elif name == "t.jsonl":
        path.write_text(TABLE.to_pandas().to_json(orient="records", lines=True) + "\n\n")
    else:
        path.write_text("\n".join(",".join(row) for row in [("id", "text"), *cells]) + "\n")
    ids, texts = read_texts(path)
    assert ids.to_pylist() == [3, 1, 2]
    assert texts == TEXTS


def test_other_columns_and_ids_of_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key,body,more\n007,NULL,1\n008,b,2\n")
    ids, texts = read_texts(path, id_column="key", text_column="body")
    assert ids.to_pylist() == ["007", "008"]
    assert texts == ["NULL", "b"]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name, content, words in [
        ("t.xlsx", "", "of no known format"),
        ("absent.csv", None, "There is no file"),
        ("t.csv", "id,text\n1,a\n1,b\n", "the id 1 twice"),
        ("t.csv", "id,text\n1,a\n2,\n", "row 2: text has no text"),
        ("t.csv", "id,text\n,a\n", "id is empty"),
        ("t.csv", "id,body\n1,a\n", "no column 'text'; it has id, body. Name the right one by"),
        ("t.csv", "id,text\n", "has no rows"),
        ("t.csv", "id,text\n1,a,b\n", "cannot be read"),
        ("t.jsonl", '{"id": 1, "text": "a"}\n{"id": 2}\n', "row 2 is no JSON object with"),
        ("t.jsonl", '{"id": 1, "text": 5}\n', "row 1: text has no text"),
        ("t.jsonl", '{"id": 1, "text": "a"}\n{"id": "x", "text": "b"}\n', "all integers or all"),
        ("t.parquet", "no parquet", "cannot be read"),
    ]:
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=words):
            read_texts(tmp_path / name)


def test_columns_of_other_types_are_refused(tmp_path: Path) -> None:
    for table, words in (
        (pa.table({"id": [1.5], "text": ["a"]}), "ids are integers or texts"),
        (pa.table({"id": [1], "text": [2]}), "it must be text"),
        (pa.table({"id": pa.nulls(0), "text": pa.nulls(0)}), "has no rows"),
    ):
        pq.write_table(table, tmp_path / "t.parquet")
        with pytest.raises(DataError, match=words):
            read_texts(tmp_path / "t.parquet")


def test_ids_that_look_like_numbers_with_a_point_keep_their_form(tmp_path: Path) -> None:
    for quote in ["", '"']:
        for ids in [["1.10", "1.1", "2.20"], ["1e5", "23e4"]]:
            rows = "".join(f"{quote}{key}{quote},a text\n" for key in ids)
            (tmp_path / "t.csv").write_text(f"id,text\n{rows}")
            assert read_texts(tmp_path / "t.csv")[0].to_pylist() == ids


def test_integers_beyond_64_bits_are_refused_and_wide_ones_below_are_read(tmp_path: Path) -> None:
    def read(largest: int) -> list[int]:
        table = pa.table({"id": pa.array([1, largest], pa.uint64()), "text": ["a", "b"]})
        pq.write_table(table, tmp_path / "t.parquet")
        ids: list[int] = read_texts(tmp_path / "t.parquet")[0].to_pylist()
        return ids

    assert read(2**63 - 1) == [1, 2**63 - 1]
    with pytest.raises(DataError, match="has the integer 9223372036854775808, which is 2⁶³"):
        read(2**63)
