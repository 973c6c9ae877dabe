"""Compressed files that expand without end are refused; files of one object a line name the row."""

from __future__ import annotations

import gzip
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evergram.data import amazon
from evergram.data.amazon import blocks, load_amazon, read_lines, read_objects, short
from evergram.data.movielens import load_movielens
from evergram.data.reading import text_files
from evergram.data.reading.text_files import HARMLESS, TIMES, GzipReader, most_bytes
from evergram.data.tables import load_table
from evergram.data.wikipedia.sql_dump import SqlTable
from evergram.errors import DataError

# Rows alike, which gzip makes a hundredth or less of: past both limits, where little is harmless.
SIZE, LITTLE = 4 << 20, 1 << 20


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests need not expand files of 64 MiB each."""
    monkeypatch.setattr(text_files, "HARMLESS", LITTLE)


def bomb(row: str = "1,1,1,1\n", header: str = "userId,movieId,rating,timestamp\n") -> bytes:
    return (header + row * (SIZE // len(row))).encode()


def in_gzip(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content))
    assert max(LITTLE, path.stat().st_size * TIMES) < len(content)
    return path


def in_zip(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ratings.csv", content)
    return path


ROWS = bomb(header="query,candidate,value,time\n")
REVIEW = '{"reviewerID": "a", "asin": "b", "overall": 5.0, "unixReviewTime": 1}\n'
PAGE = bomb("INSERT INTO `page` VALUES (1,0,'A',0);\n", "CREATE TABLE `page` (`page_id` int);\n")
EVENTS = bomb("u\ti\t1\n", "user\titem\tunix_time\n")
LOADERS: dict[str, Callable[[Path], Any]] = {
    "table": lambda f: load_table(in_gzip(f / "pairs.csv.gz", ROWS)),
    "movielens": lambda f: load_movielens(in_zip(f / "ml.zip", bomb())),
    "movielens member": lambda f: load_movielens(in_zip(f / "ratings.csv.zip", bomb()).parent),
    "amazon": lambda f: load_amazon(in_gzip(f / "reviews.json.gz", bomb(REVIEW, ""))),
    "beauty": lambda f: load_amazon(in_gzip(f / "events.tsv.gz", EVENTS).parent),
    "mediawiki": lambda f: [
        *SqlTable(in_gzip(f / "p.sql.gz", PAGE), "page").batches({"page_id": pa.int64()})
    ],
}


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("kind", LOADERS)
def test_a_file_that_expands_too_far_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataError, match=r"expands to more than \d MiB, over 100 times its size"):
        LOADERS[kind](tmp_path)


@pytest.mark.long
def test_a_file_that_expands_too_far_is_not_held_in_memory_first(tmp_path: Path) -> None:
    """Of a gigabyte no more is read than the limit."""
    path = tmp_path / "pairs.csv.gz"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(1024):
            file.write(bytes(1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="expands to more than"), GzipReader(path) as reader:
        reader.read()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 600 * 1024, "KiB"


@pytest.mark.usefixtures("little")
def test_the_limit_can_be_raised_and_a_wrong_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_gzip(tmp_path / "rows.csv.gz", ROWS)
    monkeypatch.setenv("EVERGRAM_MAX_EXPANSION", "2000")
    assert len(load_table(path)) == SIZE // 8
    for wrong in ("much", "0", "-5", "nan", "inf"):
        monkeypatch.setenv("EVERGRAM_MAX_EXPANSION", wrong)
        with pytest.raises(DataError, match=f"EVERGRAM_MAX_EXPANSION is '{wrong}'"):
            load_table(path)


def test_a_file_with_a_small_expanded_size_is_read_however_well_compressed(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(HARMLESS)))
    with GzipReader(tmp_path / "x.gz") as reader:
        assert sum(map(len, iter(lambda: reader.read1(1 << 20), b""))) == HARMLESS
    assert most_bytes(10 << 20) == 1000 << 20


SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("stars", pa.float64())])


def convert(record: dict[str, Any]) -> dict[str, Any]:
    if not record.get("id"):
        raise ValueError(f"id is {short(record.get('id'))}")
    return {"id": str(record["id"]), "stars": record.get("stars")}


def rows(path: Path) -> list[tuple[str, float | None]]:
    tables = read_objects(path, SCHEMA, convert)
    return [(row["id"], row["stars"]) for table in tables for row in table.to_pylist()]


def test_json_and_python_dictionaries_give_the_same_rows(tmp_path: Path) -> None:
    for packed in [False, True]:
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
    monkeypatch.setattr(amazon, "BLOCK", 40)
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


def test_what_is_no_text_is_named_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "objects.json.gz"
    path.write_bytes(gzip.compress(b'{"id": "a"}\n' * 9)[:-9])
    with pytest.raises(DataError, match=r"gz row \d+ cannot be read: .*; fetch the file again"):
        rows(path)
    path = tmp_path / "names.txt"
    path.write_bytes("a\n\né\n".encode())
    assert read_lines(path) == ["a", "", "é"]
    path.write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(DataError, match=r"names\.txt row 3 is not UTF-8"):
        read_lines(path)
