"""The loaders of the papers' data: MediaWiki's dumps, Amazon reviews and Wikispeedia."""

from __future__ import annotations

import gzip
import json
import logging
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reproduction.loaders import amazon, mediawiki
from reproduction.loaders.amazon import load_amazon
from reproduction.loaders.mediawiki import load_mediawiki
from reproduction.loaders.page_features import page_features
from reproduction.loaders.sql_dump import SqlTable, TableReport, Window
from reproduction.loaders.wikispeedia import load_wikispeedia
from tests.support import loader_examples
from tests.support.dumps import LINKS, MEMBERS, PAGE, Rows, new_dump, old_dump, write_table
from tests.support.prepared import bags_of, pairs_of

from evergram.data.corpus import Corpus
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
MALFORMED = [
    b"('a',1,0.5,'page')",
    b"('a',1,0.5,'page','t','t')",
    b"()",
    b"('),(',';\n),(')",
    b"('a','1',0.5,'page','t')",
    b"('a',1,0.5,'page',7)",
    b"('a',1.5,0.5,'page','t')",
    b"('a',12345678901234567890,0.5,'page','t')",
    b"('a',1,0.5,'page','O'Brien')",
    b"('a',1,0.5,'page','t)",
    b"'a',1,0.5,'page','t')",
    b"('a',1,0.5,'page','t'",
    b"(a,1,0.5,'page','t')",
    b"('a',1,0.5,'page','\xc3(')",
    b"('" + b"a" * 200_000 + b"',1,0.5,'page','t)",
]


def test_a_malformed_row_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    for chunk in (13, 1 << 20):
        for bad in MALFORMED:
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


def test_columns_are_found_and_files_that_are_no_dump_are_refused(tmp_path: Path) -> None:
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
    with pytest.raises(DataError, match=r"x\.sql cannot be opened: No such file"):
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


@pytest.mark.parametrize("dump", [old_dump, new_dump])
def test_articles_link_to_articles(
    tmp_path: Path, dump: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mediawiki, "BLOCK", 1)
    corpus, report = load_mediawiki(dump(tmp_path))
    assert corpus.shared_ids
    assert corpus.queries.vocabulary.keys.type == pa.int64()
    assert pairs_of(corpus) == [(1, 2), (2, 1), (10, 2)]
    assert bags_of(corpus.candidates, "category") == {
        1: ["Months", "Months of spring"],
        2: ["People"],
        10: ["Months"],
    }
    assert {k: set(v) for k, v in bags_of(corpus.candidates, "title").items()} == {
        1: {"april"},
        2: {"conan", "o", "brien", "conan o", "o brien"},
        10: {"été", "saison", "été saison"},
    }
    for name in ("title", "category"):
        both = (side.features[name].vocabulary for side in (corpus.queries, corpus.candidates))
        assert next(both) is next(both)
    assert (report.pages, report.redirects, report.dead_redirects) == (3, 6, 4)
    assert report.warnings() == []
    # What became of every link.
    fates = [row[3] for row in LINKS]
    counted = {k: v for k, v in vars(report).items() if re.search("^links|_links$", k) and v}
    assert counted == {fate: fates.count(fate) for fate in fates}
    assert sum(counted.values()) == report.tables["pagelinks"].rows == len(LINKS)
    assert (report.categories, report.categories_not_of_articles) == (4, 1)
    assert report.tables["categorylinks"].rows == len(MEMBERS)


def test_targets_that_linktarget_does_not_have_are_counted(tmp_path: Path) -> None:
    new_dump(tmp_path)
    write_table(tmp_path, "pagelinks", "pl_from pl_target_id", [(1, 5), (1, None), (2, 1000)])
    write_table(tmp_path, "linktarget", "lt_id lt_namespace lt_title", [(1000, 0, "April")])
    corpus, report = load_mediawiki(tmp_path)
    assert pairs_of(corpus) == [(2, 1)]
    assert report.links_to_unknown_targets == 2
    # One is of a redirect, and one of an article without a link.
    assert (report.categories_unknown, report.categories_not_of_articles) == (3, 2)
    assert (report.pages, report.pages_without_links) == (3, 1)
    assert bags_of(corpus.candidates, "category") == {1: [], 2: []}


def test_malformed_rows_are_reported(tmp_path: Path) -> None:
    path = old_dump(tmp_path) / "xwiki-1-pagelinks.sql"
    bad = b"(1,0,'\xff'),(1,'Nowhere'),(NULL,0,'April')"
    text = path.read_bytes().replace(b"(1,0,'Nowhere')", bad)
    path.unlink()
    Path(f"{path}.gz").write_bytes(gzip.compress(text.rstrip()[:-2]))
    corpus, report = load_mediawiki(tmp_path)
    assert pairs_of(corpus) == [(1, 2), (2, 1), (10, 2)]
    assert report.tables["pagelinks"].malformed == 4
    cut, malformed = report.warnings()
    assert "pagelinks.sql.gz is cut: it ends inside a row" in cut
    assert "left out: 4; the first is row 10 (byte " in malformed
    assert "not UTF-8" in malformed


@pytest.mark.parametrize("name", ["page", "categorylinks", "linktarget", "redirect"])
def test_a_file_that_is_damaged_missing_or_empty(tmp_path: Path, name: str) -> None:
    path = new_dump(tmp_path) / f"xwiki-1-{name}.sql"
    text = path.read_bytes()
    path.unlink()
    with pytest.raises(DataError, match="no file .*page.sql" if name == "page" else path.name):
        load_mediawiki(tmp_path)
    Path(f"{path}.gz").write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(DataError, match=rf"xwiki-1-{name}\.sql\.gz is cut or damaged"):
        load_mediawiki(tmp_path)
    for nothing in (b"", b"<html>Too many requests</html>"):
        path.write_bytes(nothing)
        with pytest.raises(DataError, match=rf"xwiki-1-{name}\.sql has no CREATE TABLE"):
            load_mediawiki(tmp_path)
    path.write_bytes(text.partition(b"INSERT")[0])
    if name in ("categorylinks", "redirect"):
        assert (2, 1) in pairs_of(load_mediawiki(tmp_path)[0])
    else:
        with pytest.raises(DataError, match=rf"xwiki-1-{name}\.sql (has no|links no|gave no)"):
            load_mediawiki(tmp_path)


def test_pages_that_come_twice_or_have_no_name(tmp_path: Path) -> None:
    pages: Rows = [(1, 0, "A", 0), (1, 0, "C", 0), (3, 0, "A", 0), (None, 0, "D", 0)]
    write_table(new_dump(tmp_path), "page", PAGE, [*pages, (5, 0, None, 0), (2, 0, "B", 0)])
    write_table(tmp_path, "pagelinks", "pl_from pl_target_id", [(1, 5), (2, 6), (1, -7), (-1, 5)])
    write_table(tmp_path, "linktarget", "lt_id lt_namespace lt_title", [(5, 0, "B"), (6, 0, "A")])
    corpus, report = load_mediawiki(tmp_path)
    assert pairs_of(corpus) == [(1, 2), (2, 1)]
    assert (report.pages, report.repeated_pages, report.tables["page"].malformed) == (2, 2, 2)
    assert (report.links_to_unknown_targets, report.links_not_from_articles) == (1, 1)
    assert report.warnings()[1].endswith("page.sql: rows that repeat a page, left out: 2.")


@pytest.mark.parametrize(("end", "expected"), [(30, [(31, 30), (30, 31)]), (5, [(30, 31)])])
def test_long_chains_end_at_their_article_and_loops_nowhere(
    tmp_path: Path, end: int, expected: list[tuple[int, int]]
) -> None:
    rows = [(i, 0, f"P{i}", int(i < 30)) for i in range(1, 32)]
    write_table(tmp_path, "page", PAGE, rows)
    leads: Rows = [(i, 0, f"P{i % end + 1}") for i in range(1, 30)]
    write_table(tmp_path, "redirect", "rd_from rd_namespace rd_title", leads)
    columns = "pl_from pl_namespace pl_title"
    write_table(tmp_path, "pagelinks", columns, [(30, 0, "P31"), (31, 0, "P1")])
    write_table(tmp_path, "categorylinks", "cl_from cl_to", [])
    corpus, report = load_mediawiki(tmp_path)
    assert sorted(pairs_of(corpus)) == sorted(expected)
    assert report.dead_redirects == (0 if end == 30 else 29)


def test_what_is_not_one_dump_of_articles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file \*-page\.sql"):
        load_mediawiki(tmp_path)
    path = old_dump(tmp_path) / "xwiki-1-page.sql"
    whole = path.read_bytes()
    create, insert, rows = whole.partition(b"INSERT")
    path.write_bytes(create + insert + rows.replace(b"(", b"(x"))
    with pytest.raises(DataError, match=r"no row of it .* rows left out: 10; the first is row 1 "):
        load_mediawiki(tmp_path)
    path.write_bytes(whole)
    write_table(tmp_path, "pagelinks", "pl_from pl_namespace pl_title", [(9, 1, "Other")])
    with pytest.raises(DataError, match="links no two pages of namespace 0"):
        load_mediawiki(tmp_path)
    write_table(tmp_path, "page", PAGE, [(9, 1, "April", 0)])
    with pytest.raises(DataError, match="no page of namespace 0; it has pages of 1"):
        load_mediawiki(tmp_path)
    old_dump(tmp_path, "ywiki-2")
    with pytest.raises(DataError, match="the dumps xwiki-1, ywiki-2"):
        load_mediawiki(tmp_path)


def test_features_of_pages() -> None:
    """N-grams in lower case of any script; a page that is twice in a category counts once."""
    titles = ["_The_the_THE", "2006年_(film)", "!!!", "", "हिन्दी भाषा"]
    entity, categories = np.array([0, 2, 1, 2, 2]), pa.array(["a", "b", "a", "b", "c"])
    table = page_features(pa.array(range(5)), pa.array(titles), entity, categories)
    assert [set(bag) for bag in table["title"].to_pylist()] == [
        {"the", "the the"},
        {"2006年", "film", "2006年 film"},
        set(),
        set(),
        {"हिन्दी", "भाषा", "हिन्दी भाषा"},
    ]
    assert table["category"].to_pylist() == [["a"], ["a"], ["b", "c"], [], []]


def review(user: str, asin: str, overall: float, time: int, **more: Any) -> dict[str, Any]:
    return {"reviewerID": user, "asin": asin, "overall": overall, "unixReviewTime": time, **more}


def review_2014(user: str, asin: str, overall: float, time: int) -> str:
    more = {"reviewerName": 'Al "Ace"', "helpful": [0, 2], "reviewText": "Good.\n", "summary": ""}
    return json.dumps(review(user, asin, overall, time, **more, reviewTime="03 16, 2013"))


def review_2018(user: str, asin: str, overall: float, time: int) -> str:
    # Keys come and go, and some change their type between rows.
    more = {"verified": time % 2 == 0, "vote": "1,003", "style": {"Format:": " Vinyl"}}
    more["image"] = ["a.jpg"] if time % 3 else None
    return json.dumps({**more, **review(user, asin, overall, time)})


def write(path: Path, *lines: str) -> Path:
    content = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def bags(corpus: Corpus) -> dict[str, tuple[list[str], list[str]]]:
    """The brands and the categories of each candidate."""
    brands, categories = (bags_of(corpus.candidates, name) for name in ("brand", "category"))
    return {asin: (brands[asin], categories[asin]) for asin in sorted(brands)}


@pytest.mark.parametrize(("line", "name"), [(review_2014, "r.json.gz"), (review_2018, "r.jsonl")])
def test_both_layouts_in_every_file(tmp_path: Path, name: str, line: Any) -> None:
    write(
        tmp_path / name,
        line("bo", "B2", 4.0, 86400),
        line("al", "0B1", 5, 86400),  # the same day: the file's order stays
        "",
        line("cy", "B2", 1.0, 0),
        line("bo", "B2", 2.5, 86400),  # the pair again: kept
    )
    for path in (tmp_path, tmp_path / name):
        corpus = load_amazon(path)
        assert pairs_of(corpus) == [("cy", "B2"), ("bo", "B2"), ("al", "0B1"), ("bo", "B2")]
        assert corpus.column("value").tolist() == [1.0, 4.0, 5.0, 2.5]
        assert corpus.column("time").tolist() == [0, 86400, 86400, 86400]
        assert corpus.candidates.features == {}


PRODUCTS_2014: list[dict[str, Any]] = [
    {"asin": "B0", "title": "Mom's \"best\"", "brand": "Dr. Bronner's",
     "categories": [["Beauty", "Soap"], ["Beauty", "Gifts & More"]], "price": 3.5},
    {"asin": "B9", "brand": "Unreviewed", "categories": [["Nowhere"]]},
    {"asin": "B1", "salesRank": {"Beauty": 7}, "categories": [["Beauty"]]},
    {"asin": "B2", "brand": "Clean &amp; Clear", "categories": []},
]  # fmt: skip
PRODUCTS_2018: list[dict[str, Any]] = [
    {"asin": "B0", "brand": "\n\n  Hal \n Leonard", "category": ["Music", "Rock &amp; Pop"]},
    {"asin": "B1", "brand": "", "category": ["Music", "</span></span>", '<a href="#"', "<3 Jazz"]},
    {"asin": "B9", "brand": "Unreviewed", "category": ["Nowhere"]},
    {"asin": "B0", "brand": "Second", "category": ["Again"]},
    {"asin": "B2", "title": "var aPageStart = 1;", "category": [], "also_buy": ["B1"]},
    {"asin": "B0", "brand": "Third", "category": []},
]
MUSIC = {
    "B0": (["Hal Leonard"], ["Music", "Rock & Pop"]),
    "B1": ([], ["Music", "<3 Jazz"]),
    **dict.fromkeys(("B2", "B3"), ([], [])),
}
METADATA: list[tuple[list[str], dict[str, Any]]] = [
    (
        [*map(repr, PRODUCTS_2014)],
        {
            "B0": (["Dr. Bronner's"], ["Beauty", "Soap", "Gifts & More"]),
            "B1": ([], ["Beauty"]),
            "B2": (["Clean & Clear"], []),
            "B3": ([], []),
        },
    ),
    ([*map(json.dumps, PRODUCTS_2018)], MUSIC),
    # One odd row sends its block down the slow way, which must see the same.
    ([*map(json.dumps, PRODUCTS_2018), '{"asin": "B8", "brand": 5, "category": "Music"}'], MUSIC),
    (
        [
            '{"asin": "B0", "brand": ["Sony"], "category": "Music"}',
            '{"asin": "B1", "brand": 5, "category": {"a": "b"}}',
            r'{"asin": "B2", "brand": "half \ud83d", "category": ["fire \ud83d\udd25"]}',
            r"{'asin': 'B3', 'brand': 'AC\/DC'}",
        ],
        {
            "B0": (["Sony"], ["Music"]),
            "B1": ([], []),
            "B2": (["half ?"], ["fire 🔥"]),
            "B3": ([r"AC\/DC"], []),
        },
    ),
]


@pytest.mark.parametrize(("lines", "expected"), METADATA)
def test_metadata_of_both_layouts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lines: list[str], expected: dict[str, Any]
) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path / "r.json", *(review_2018("al", f"B{i}", 5.0, i) for i in range(4)))
    write(tmp_path / "meta.json", *lines)
    assert bags(load_amazon(tmp_path)) == expected
    assert ("2 rows repeat a product" in caplog.text) == (expected is MUSIC)


def test_rare_keys_and_undescribed_products_can_be_left_out(tmp_path: Path) -> None:
    # B4 has no review, and does not count; neither does a second review of a product.
    asins = ["B0", "B1", "B2", "B3", "B3", "B5"]
    write(tmp_path / "r.json", *(review_2018("al", a, 5.0, i) for i, a in enumerate(asins)))
    # Without any metadata there is nothing to go by.
    assert len(load_amazon(tmp_path, described_only=True)) == 6
    brands = ["Sony", "Sony", "Sony", "Rare", "Rare"]
    categories = [["All", "A"], ["All", "A"], ["All"], ["All", "A"], ["A"]]
    products = [
        {"asin": f"B{i}", "brand": brand, "category": category}
        for i, (brand, category) in enumerate(zip(brands, categories, strict=True))
    ]
    write(tmp_path / "meta.json", *map(json.dumps, products))
    full = (["Sony"], ["All", "A"])
    described = {"B0": full, "B1": full, "B2": (["Sony"], ["All"]), "B3": (["Rare"], ["All", "A"])}
    assert bags(load_amazon(tmp_path)) == described | {"B5": ([], [])}
    three = load_amazon(tmp_path, minimum_products=3, described_only=True)
    assert (bags(three), len(three)) == (described | {"B3": ([], ["All", "A"])}, 5)
    four = bags(load_amazon(tmp_path, minimum_products=4, described_only=True))
    assert four == dict.fromkeys(described, ([], ["All"]))


def test_metadata_that_cannot_be_used(tmp_path: Path) -> None:
    write(tmp_path / "r.json", review_2014("al", "B1", 5.0, 1))
    for line, message in [
        ("{'asin': open('trace', 'w').name}", r"meta\.json row 1: the line is"),  # no code is run
        (json.dumps({"asin": "B2"}), "none of the products"),
    ]:
        write(tmp_path / "meta.json", line)
        with pytest.raises(DataError, match=message):
            load_amazon(tmp_path)
    assert not Path("trace").exists()


GOOD = review_2018("al", "B1", 5.0, 1)


def test_a_bad_line_is_named_by_its_file_and_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block in (amazon.BLOCK, 400):
        monkeypatch.setattr(amazon, "BLOCK", block)
        for bad, words in [
            (GOOD.replace('"B1"', '""'), "asin is ''"),
            (GOOD.replace('"al"', r'"\ud83d"'), "encode"),
            (GOOD.replace("reviewerID", "user_id"), "reviewerID is None"),
            (GOOD.replace("5.0", "1e999"), "overall is inf"),
            (GOOD.replace('Time": 1', 'Time": 1.5'), "unixReviewTime is 1.5"),
            (GOOD.replace('Time": 1', 'Time": 99999999999999999999'), "unixReviewTime is 9999"),
            (f"[{GOOD}]", "one whole JSON object"),
            ("[" * 300, "one whole JSON object"),
        ]:
            lines = [*[GOOD] * 8, "", bad, GOOD]
            path = write(tmp_path / "r.json.gz", *lines)
            with pytest.raises(DataError, match=rf"r\.json\.gz row 10: .*{words}"):
                load_amazon(path)
        assert len(load_amazon(write(path, *[GOOD] * 8, "", GOOD))) == 9
    with pytest.raises(DataError, match="row 2 is longer than"):
        load_amazon(write(path, GOOD, "x" * 900))
    path.write_bytes(write(path, GOOD, GOOD).read_bytes()[:-9])
    with pytest.raises(DataError, match=r"gz row \d+ cannot be read"):
        load_amazon(path)


def test_a_folder_holds_one_file_of_reviews_and_one_of_metadata_at_most(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no file or folder"):
        load_amazon(tmp_path / "nowhere")
    for name, holds in [
        ("meta_a.json", "none"),
        ("meta_b.json", r"meta_a\.json"),
        ("a.json", r"meta_a\.json, meta_b\.json"),
        ("", r"a\.json, meta_a\.json, meta_b\.json"),
    ]:
        with pytest.raises(DataError, match=f"must hold one file of reviews .* holds {holds};"):
            load_amazon(tmp_path)
        if name:
            write(tmp_path / name, GOOD)


def beauty(folder: Path) -> Path:
    write(folder / "events.tsv.gz", "user\titem\tunix_time", "u\tB1\t9", "u\tB0\t5", "v\tB2\t5")
    write(folder / "product.txt.gz", "B0", "B1", "B2", "B9")
    write(folder / "brand.txt.gz", "L&#39;Oreal", "Prada")
    write(folder / "brand_p_b.txt.gz", "1", "", "0", "1")
    write(folder / "category.txt.gz", "Beauty", "Hair", "Skin")
    write(folder / "category_p_c.txt.gz", "0 2", "0", "", "0 1")
    return folder


def test_beauty_in_columns(tmp_path: Path) -> None:
    corpus = load_amazon(beauty(tmp_path))
    assert pairs_of(corpus) == [("u", "B0"), ("v", "B2"), ("u", "B1")]
    assert corpus.column("time").tolist() == [5, 5, 9]
    assert not corpus.has_values
    expected = {"B0": (["Prada"], ["Beauty", "Skin"]), "B1": ([], ["Beauty"])}
    assert bags(corpus) == expected | {"B2": (["L'Oreal"], [])}
    (tmp_path / "product.txt.gz").unlink()
    assert load_amazon(tmp_path).candidates.features == {}


def test_a_bad_row_of_beauty_is_named(tmp_path: Path) -> None:
    for name, lines, words in [
        ("events.tsv.gz", ["user\titem\tunix_time", "u\tB1\t9", "u\t\t5"], "row 2: item"),
        ("events.tsv.gz", ["user\titem\ttime", "u\tB1\t9"], "unix_time"),
        ("brand_p_b.txt.gz", ["1", "", "2", ""], "row 3: the line is '2'; .* from 0 to 1"),
        ("category_p_c.txt.gz", ["0", "1"], "has 2 rows; it must have 4"),
        ("category_p_c.txt.gz", ["\udcff"], "row 1 is not UTF-8"),
    ]:
        write(beauty(tmp_path) / name, *lines)
        with pytest.raises(DataError, match=words) as caught:
            load_amazon(tmp_path)
        assert str(tmp_path) in str(caught.value)


def test_the_real_reviews(real_data: Path) -> None:
    corpus = load_amazon(real_data / "amazon-musical-instruments")
    assert (len(corpus), len(corpus.queries), len(corpus.candidates)) == (10_261, 1_429, 900)
    assert set(corpus.column("value").tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    corpus = load_amazon(real_data / "amazon-beauty")
    assert (len(corpus), len(corpus.queries), len(corpus.candidates)) == (198_502, 22_363, 12_101)
    categories = bags_of(corpus.candidates, "category").values()
    assert len({key for bag in categories for key in bag}) == 248
    assert sum(not bag for bag in bags_of(corpus.candidates, "brand").values()) == 2_098


def test_wikispeedia(tmp_path: Path) -> None:
    loader_examples.wikispeedia(tmp_path)
    corpus = load_wikispeedia(tmp_path)
    assert corpus.shared_ids
    assert pairs_of(corpus) == [("Áed", "A_b"), ("A_b", "Áed")]
    titles, categories = (bags_of(corpus.candidates, n) for n in ("title", "category"))
    assert {k: sorted(v) for k, v in titles.items()} == {"Áed": ["áed"], "A_b": ["a", "a b", "b"]}
    assert categories == {"Áed": ["subject.X"], "A_b": ["subject.X", "subject.Y.Z"]}


WHOLE = gzip.compress(b"A_b\tAlone\n" * 1000, mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("links.tsv", b"A_b\tAlone\nA_b\tNobody\n", r"links\.tsv row 2: 'Nobody' is not in"),
        ("links.tsv", b"# none\n", r"links\.tsv has no rows"),
        ("categories.tsv", b"Nobody\tX\n", r"categories\.tsv row 1: 'Nobody'"),
        ("articles.tsv", b"%FF\n", "not UTF-8"),
        ("links.tsv", None, r"no links\.tsv or links\.tsv\.gz"),
        ("links.tsv.gz", WHOLE[:-9], r"links\.tsv\.gz cannot be read"),
    ],
)
def test_wikispeedia_that_cannot_be_used(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    loader_examples.wikispeedia(tmp_path)
    (tmp_path / name.removesuffix(".gz")).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_wikispeedia(tmp_path)
