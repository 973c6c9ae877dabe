"""The files of a dump: which one is meant, and the sentences of its report."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from evergram.data.wikipedia import dump_files
from evergram.data.wikipedia.dump_files import DumpFiles, DumpReport, together
from evergram.data.wikipedia.sql_dump import TableReport
from evergram.errors import DataError

PAGE = b"CREATE TABLE `page` (\n  `page_id` int,\n  `page_title` varbinary(9)\n);\n"
ROWS = b"INSERT INTO `page` VALUES (1,'A'),(2,'B'),(x),(3,'C');\n"


def test_the_one_dump_of_a_folder_needs_no_prefix(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no file \*-page\.sql or \.sql\.gz; put the dump"):
        DumpFiles(tmp_path, None)
    (tmp_path / "xwiki-1-page.sql.gz").write_bytes(gzip.compress(PAGE))
    assert DumpFiles(tmp_path, None).open("page").columns == ("page_id", "page_title")
    (tmp_path / "ywiki-2-page.sql").write_bytes(PAGE)
    with pytest.raises(DataError, match="has the dumps xwiki-1, ywiki-2; name one of them as pref"):
        DumpFiles(tmp_path, None)
    assert DumpFiles(tmp_path, "ywiki-2").open("page").path.name == "ywiki-2-page.sql"
    with pytest.raises(DataError, match=r"no file .*xwiki-1-pagelinks\.sql .*others come from\.$"):
        DumpFiles(tmp_path, "xwiki-1").open("pagelinks")
    with pytest.raises(DataError, match='or load with redirects="drop"'):
        DumpFiles(tmp_path, "xwiki-1").open("redirect")


def test_blocks_hold_all_rows_and_the_report_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_files, "BLOCK", 2)
    (tmp_path / "w-page.sql").write_bytes(PAGE + ROWS)
    dump = DumpFiles(tmp_path, None)
    blocks = list(dump.blocks(dump.open("page"), "page_id", "page_title"))
    assert [id_ for block in blocks for id_ in block["page_id"].to_pylist()] == [1, 2, 3]
    assert blocks[0]["page_title"].type == pa.string()
    assert (dump.report.tables["page"].rows, dump.report.tables["page"].malformed) == (3, 1)
    error = dump.refuse(dump.open("page"), "links no two pages;")
    assert "links no two pages; " in str(error)
    assert "malformed rows left out: 1; the first is row 3" in str(error)


def test_a_report_without_faults_warns_of_nothing() -> None:
    report = DumpReport(tables={"page": TableReport("w-page.sql")})
    assert report.warnings() == []
    report.repeated_pages = 1200
    assert report.warnings() == ["w-page.sql: rows that repeat a page, left out: 1,200."]


def test_batches_are_laid_end_to_end() -> None:
    batches = [pa.record_batch({"a": [1]}), pa.record_batch({"a": [2, 3]})]
    assert together(batches)["a"].equals(pa.array([1, 2, 3]))
