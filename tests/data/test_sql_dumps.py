"""Tables as mysqldump writes them are read back, whatever their strings hold."""

from __future__ import annotations

import gzip
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evergram.data.wikipedia.sql_dump import SqlTable, TableReport, Window
from evergram.errors import DataError

# The columns' order, and others among them, are the dump's own.
CREATE = """-- MariaDB dump
/*!40101 SET NAMES utf8mb4 */;
DROP TABLE IF EXISTS `t`;
CREATE TABLE `t` (
  `skip` varbinary(230) NOT NULL DEFAULT 'a),(;\\'`b` int,',
  `id` int(8) unsigned NOT NULL DEFAULT 0,
  `random` double unsigned NOT NULL COMMENT 'of (0, 1); and so on',
  `kind` enum('page','sub,cat') NOT NULL DEFAULT 'page',
  `title` varbinary(255) NOT NULL DEFAULT '',
  PRIMARY KEY (`id`,`title`(10)),
  KEY `title` (`title`)
) ENGINE=InnoDB AUTO_INCREMENT=79 DEFAULT CHARSET=binary ROW_FORMAT=COMPRESSED;
/*!40000 ALTER TABLE `t` DISABLE KEYS */;
"""
COLUMNS = {"title": pa.string(), "id": pa.int64()}
ESCAPES = {0: b"\\0", 10: b"\\n", 13: b"\\r", 26: b"\\Z", 34: b'\\"', 39: b"\\'", 92: b"\\\\"}

Row = tuple[bytes | None, int | None, float, str | None]


def quoted(value: bytes | None) -> bytes:
    if value is None:
        return b"NULL"
    return b"'" + b"".join(ESCAPES.get(byte, bytes([byte])) for byte in value) + b"'"


def written(row: Row) -> bytes:
    skip, number, real, title = row
    fields = [
        quoted(skip),
        b"NULL" if number is None else b"%d" % number,
        repr(real).encode(),
        b"'page'",
        quoted(None if title is None else title.encode()),
    ]
    return b"(" + b",".join(fields) + b")"


def insert(rows: list[bytes], between: bytes = b",") -> bytes:
    return b"INSERT INTO `t` VALUES " + between.join(rows) + b";\n"


def read(
    folder: Path, text: bytes, chunk: int = 1 << 20, *, packed: bool = False
) -> tuple[list[tuple[str | None, int | None]], TableReport]:
    path = folder / ("x-t.sql.gz" if packed else "x-t.sql")
    path.write_bytes(gzip.compress(text) if packed else text)
    table = SqlTable(path, "t", chunk)
    rows = [
        (row["title"], row["id"]) for batch in table.batches(COLUMNS) for row in batch.to_pylist()
    ]
    assert table.report.rows == len(rows)
    return rows, table.report


nasty = st.text(st.sampled_from("a'\\\",;()\n\r\0\x1aNé年`- %_"), max_size=12)
strings = st.none() | nasty | st.text(max_size=20)
numbers = st.none() | st.integers(-(10**18) + 1, 10**18 - 1)
reals = st.floats(allow_nan=False, allow_infinity=False)
row_of = st.tuples(st.none() | st.binary(max_size=20), numbers, reals, strings)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(row_of, min_size=1, max_size=6), max_size=4),
    st.integers(1, 200),
    st.booleans(),
)
@example([[(b"'),(\\", -1, -1e-05, "\\'),(';\n")] * 3] * 2, 1, True)
def test_rows_that_are_written_are_read_back(
    inserts: list[list[Row]], chunk: int, packed: bool
) -> None:
    text = CREATE.encode() + b"".join(insert([written(row) for row in rows]) for rows in inserts)
    with tempfile.TemporaryDirectory() as folder:
        rows, report = read(Path(folder), text + b"-- Dump completed", chunk, packed=packed)
    assert rows == [(row[3], row[1]) for part in inserts for row in part]
    assert (report.malformed, report.first_malformed, report.truncated) == (0, "", "")


# Each is one malformed row, whatever stands before and after it.
MALFORMED = {
    "too few fields": b"('a',1,0.5,'page')",
    "too many fields": b"('a',1,0.5,'page','t','t')",
    "no fields": b"()",
    "separators in a string of a row with too few": b"('),(',';\n),(')",
    "a string for a number": b"('a','1',0.5,'page','t')",
    "a number for a string": b"('a',1,0.5,'page',7)",
    "a fraction for a whole number": b"('a',1.5,0.5,'page','t')",
    "a number that int64 does not hold": b"('a',12345678901234567890,0.5,'page','t')",
    "an unescaped quote": b"('a',1,0.5,'page','O'Brien')",
    "a string without an end": b"('a',1,0.5,'page','t)",
    "no parenthesis": b"'a',1,0.5,'page','t')",
    "no parenthesis at the end": b"('a',1,0.5,'page','t'",
    "a word": b"(a,1,0.5,'page','t')",
    "not UTF-8": b"('a',1,0.5,'page','\xc3(')",
    "too long": b"('" + b"a" * 200_000 + b"',1,0.5,'page','t)",
}


def test_a_malformed_row_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    for chunk in (13, 1 << 20):
        for bad in MALFORMED.values():
            good = [written((b"x", i, 0.5, f"t'{i}")) for i in range(9)]
            whole = [(f"t'{i}", i) for i in range(9)]
            for place in (0, 4, 9):
                text = CREATE.encode() + insert([*good[:place], bad, *good[place:]]) + insert(good)
                rows, report = read(tmp_path, text, chunk if len(bad) < 999 else 999)
                assert rows == whole + whole
                assert report.malformed == 1
                assert report.truncated == ""
                first = re.match(r"row (\d+) \(byte (\d+)\): ", report.first_malformed)
                assert first
                assert int(first[1]) == place + 1
                assert text[int(first[2]) :].startswith(bad[:20])


def test_a_file_cut_anywhere_says_so(tmp_path: Path) -> None:
    for chunk in [7, 1 << 20]:
        lines = [written((b"x", i, 0.5, f"t\\{i}")) for i in range(3)]
        text = CREATE.encode() + insert(lines)
        start = len(CREATE)
        for end in range(start + 3, len(text) - 2):
            records, report = read(tmp_path, text[:end], chunk)
            assert report.truncated.startswith("it ends inside"), text[start:end]
            assert records == [(f"t\\{i}", i) for i in range(len(records))]
            after = text[start:end].partition(b"VALUES ")[2]
            # A row is there once the comma after it is, and one that has begun is malformed.
            *whole, begun = after.split(b"'),")
            assert (len(records), report.malformed) == (len(whole), len(begun) > 0)
            assert ("inside a row" in report.truncated) == (len(begun) > 0)
        assert read(tmp_path, text[:-1], chunk)[1].truncated == ""


def test_a_cut_or_damaged_gzip_is_refused_by_name(tmp_path: Path) -> None:
    numbers = random.Random(0)
    rows = [written((b"x", numbers.randrange(10**9), 0.5, str(i))) for i in range(20_000)]
    whole = gzip.compress(CREATE.encode() + insert(rows))
    path = tmp_path / "x-t.sql.gz"
    damaged = whole[:90_000] + b"\xff" * 50 + whole[90_050:]
    for content in (whole[:5], whole[: len(whole) // 2], whole[:-4], damaged, b"no gzip at all"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"x-t\.sql\.gz is cut or damaged \(.+\); fetch it"):
            list(SqlTable(path, "t", 10_000).batches(COLUMNS))


def test_null_may_be_malformed(tmp_path: Path) -> None:
    path = tmp_path / "x-t.sql"
    fields = (("A", 1), (None, 2), ("C", None), ("D", -4))
    lines = [written((None, number, 0.5, title)) for title, number in fields]
    path.write_bytes(CREATE.encode() + insert(lines))
    table = SqlTable(path, "t", 10)
    records = [row for batch in table.batches(COLUMNS, ["id"]) for row in batch.to_pylist()]
    assert [row["id"] for row in records] == [1, 2, -4]
    assert table.report.malformed == 1
    assert "row 3 (byte" in table.report.first_malformed
    assert sum(batch.num_rows for batch in table.batches(COLUMNS, COLUMNS)) == 2
    assert table.report.malformed == 2


def test_other_ways_of_writing_the_same(tmp_path: Path) -> None:
    for text in [
        b"INSERT INTO `t` VALUES\n('a',1,0.5,'page','A'),\n('a',2,0.5,'page','B') ;\n",
        b"INSERT INTO t VALUES ('a',1,0.5,'page','A');\nREPLACE INTO `t` VALUES ('',2,0,'','B');",
        b"INSERT IGNORE INTO `t` (`id`, `title`) VALUES (1,'A'),(2,'B');\n",
        b"  INSERT INTO `t` VALUES ('a',1,0,'','A'); INSERT INTO `t` VALUES ('',2,0,'','B');\n",
        b"insert delayed into w.t values ('a',1,0,'','A');;\n\n\tINSXRT `t` VALUE ('',2,0,'','B');",
        b"INSERT INTO `u` VALUES (8,'` t VALUES (');\n-- INSERT INTO `t` VALUES (9);\n"
        b"INSERT INTO `t` VALUES ('a',1,0,'','A'),('',2,0,'','B');\n",
        b"INSERT INTO `t` VALUES (_binary 'a',1,0.5,0xFF00,_binary 'A'),('a',2,-1.5e-7,NULL,'B');",
        b"INSERT INTO `tt` VALUES (7,'x');\n"
        b"INSERT INTO `t` VALUES ('a',1,0,'','A'),('',2,0,'','B');\n"
        b"INSERT INTO `u` VALUES (8,'" + b"INSERT INTO `t` VALUES (9);" * 400 + b"');\n",
    ]:
        for chunk in [5, 100, 1 << 20]:
            rows, report = read(tmp_path, CREATE.encode() + text, chunk)
            assert rows == [("A", 1), ("B", 2)]
            assert (report.malformed, report.truncated) == (0, "")


def test_quotes_may_be_doubled_and_a_backslash_escapes_letters_as_in_mysql(tmp_path: Path) -> None:
    text = rb"INSERT INTO `t` VALUES ('QQ',1,0,'','OQQBrien'),('',2,0,'','QQ'),('',3,0,'','');"
    text = text.replace(b"Q", b"'") + b"\n"
    text += rb"""INSERT INTO `t` VALUES ('',4,0,'','\0\b\n\r\t\Z\\\'\"\%\_\a');"""
    titles = ["O'Brien", "'", "", "\0\b\n\r\t\x1a\\'\"\\%\\_a"]  # as MySQL's manual has it
    assert [title for title, _ in read(tmp_path, CREATE.encode() + text)[0]] == titles


def test_columns_are_found_whatever_is_around_them(tmp_path: Path) -> None:
    path = tmp_path / "x-t.sql"
    path.write_text(CREATE)
    table = SqlTable(path, "t", 10)
    assert table.columns == ("skip", "id", "random", "kind", "title")
    with pytest.raises(DataError, match=r"no column 'name'; its columns are: skip, id, random"):
        list(table.batches({"name": pa.string()}))
    assert list(table.batches(COLUMNS)) == []
    path.write_text(CREATE + "INSERT INTO `t` (`id`) VALUES (1);\n")
    with pytest.raises(DataError, match=r"no column 'title'; its columns are: id"):
        list(table.batches(COLUMNS))


def test_a_file_that_cannot_be_opened_or_is_no_dump(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.sql cannot be opened: No such file"):
        SqlTable(tmp_path / "x.sql", "t")
    (tmp_path / "x.sql").write_text("CREATE TABLE `tt` (`a` int);\n")
    with pytest.raises(DataError, match=r"x\.sql has no CREATE TABLE `t`"):
        SqlTable(tmp_path / "x.sql", "t")


def test_a_broken_row_without_end_is_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = 0
    read_on = Window.read_on

    def watched(self: Any, keep: int) -> None:
        nonlocal longest
        read_on(self, keep)
        longest = max(longest, len(self.bytes))

    monkeypatch.setattr(Window, "read_on", watched)
    text = CREATE.encode() + insert([b"('" + b"a" * 5_000_000])
    rows, report = read(tmp_path, text, 10_000)
    assert (rows, report.malformed) == ([], 1)
    assert longest < 100_000


REAL = [
    ("aawiki-20260101-pagelinks.sql.gz", "pl_from pl_target_id", 637, [1426, 233]),
    ("aawiki-20260101-categorylinks.sql.gz", "cl_from cl_sortkey", 156, [1341, "DIAGRAPH01"]),
    ("enwiktionary-linktarget-fragment.sql", "lt_id lt_title", 6, [10, "English language"]),
    ("krwiki-2016-pagelinks-excerpt.sql", "pl_from pl_title", 14, [1569, "217.83.90.198"]),
    ("page-mw135-fragment.sql", "page_id page_title", 4, [1, "Hauptseite"]),
    ("simplewiki-20260901-ddl-notes.sql", "rd_from rd_title", 0, None),
]
TABLES = {"pl": "pagelinks", "cl": "categorylinks", "lt": "linktarget", "rd": "redirect"}


def test_real_dumps(real_data: Path) -> None:
    for file, columns, rows, first in REAL:
        for chunk in (11, 1 << 20):
            table = TABLES.get(columns[:2], "page")
            read = SqlTable(real_data / "mediawiki" / file, table, chunk)
            text = ("title", "sortkey")
            kinds = {c: pa.string() if c.endswith(text) else pa.int64() for c in columns.split()}
            records = [row for batch in read.batches(kinds) for row in batch.to_pylist()]
            assert len(records) == rows
            assert (list(records[0].values()) if records else None) == first
            assert (read.report.malformed, read.report.truncated) == (0, "")
    path = real_data / "mediawiki" / "krwiki-2016-pagelinks-excerpt.sql"
    titles = next(SqlTable(path, "pagelinks").batches({"pl_title": pa.string()}))["pl_title"]
    escaped = {"Tlh:lo'wI:RCBot", "Özel:Allpages", "利用者:Tiyoringo/立ち上げ記事"}
    assert escaped <= set(titles.to_pylist())
