"""A dump that is staged and prepared is the corpus that the loader makes of it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.support.dumps import PAGE, Rows, new_dump, old_dump, write_table
from tests.support.prepared_folders import assert_is_corpus

from evergram.data.prepared.prepared_record import PreparedRecord
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.data.prepared.writing.staged_dump import stage_mediawiki
from evergram.data.wikipedia import dump_files
from evergram.data.wikipedia.links import load_mediawiki
from evergram.errors import DataError

SETTINGS = PrepareSettings(kind="mediawiki", memory="256MiB", threads=1)


def large_dump(folder: Path, pages: int, links: int) -> Path:
    """Write a dump of random links among pages of which every seventh is a redirect."""
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(0)
    ids = draw.permutation(10 * pages)[:pages].tolist()
    titles = [f"Page_{i % 97}_of_{i}" for i in ids]
    rows = [(i, 0, t, int(n % 7 == 0)) for n, (i, t) in enumerate(zip(ids, titles, strict=True))]
    write_table(folder, "page", PAGE, rows)
    ends = draw.integers(0, pages, (2, links)).tolist()
    linked: Rows = [(ids[a], 0, titles[b]) for a, b in zip(*ends, strict=True)]
    write_table(folder, "pagelinks", "pl_from pl_namespace pl_title", linked)
    members: Rows = [(i, f"C{c}") for i in ids for c in draw.integers(0, 50, 2).tolist()]
    write_table(folder, "categorylinks", "cl_from cl_to", members)
    leads: Rows = [(ids[n], 0, titles[(n * 5 + 1) % pages]) for n in range(0, pages, 7)]
    write_table(folder, "redirect", "rd_from rd_namespace rd_title", leads)
    return folder


@pytest.mark.parametrize("dump", [old_dump, new_dump])
@pytest.mark.parametrize("block", [1, 1 << 22])
def test_a_prepared_dump_is_the_loaded_one(
    dump: Any, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_files, "BLOCK", block)
    folder, out = dump(tmp_path / "dump"), tmp_path / "out"
    summary = prepare(folder, out, SETTINGS)
    corpus, _ = load_mediawiki(folder)
    assert_is_corpus(out, corpus)
    assert summary.rows_read == summary.interactions == len(corpus) == 3
    assert sorted(p.name for p in out.iterdir()) == ["entities.arrow", "parts", "prepared.json"]
    assert PreparedRecord.load(out).parts[0].sources == [str(folder / "xwiki-1-pagelinks.sql")]


def test_many_links_are_in_the_order_of_the_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several blocks, and several batches of distinct links, some of them at a border.
    monkeypatch.setattr(dump_files, "BLOCK", 5_000)
    monkeypatch.setattr("evergram.data.prepared.engine.database.FETCHED", 2_048)
    folder = large_dump(tmp_path / "dump", 300, 40_000)
    prepare(folder, tmp_path / "out", SETTINGS)
    corpus, report = load_mediawiki(folder)
    assert report.repeated_links > 1_000
    assert len(corpus) > 10_000
    assert_is_corpus(tmp_path / "out", corpus)


def test_the_real_links_are_prepared_as_they_are_loaded(tmp_path: Path, real_data: Path) -> None:
    for name in ("pagelinks", "categorylinks"):
        dump = real_data / "mediawiki" / f"aawiki-20260101-{name}.sql.gz"
        (tmp_path / dump.name).symlink_to(dump)
    pages: Rows = [(1426, 0, "A", 0), (2051, 0, "B", 0), (2034, 0, "C", 0)]
    write_table(tmp_path, "page", PAGE, pages, "aawiki-20260101")
    write_table(tmp_path, "redirect", "rd_from rd_namespace rd_title", [], "aawiki-20260101")
    targets: Rows = [(233, 0, "B"), (158, 0, "C"), (208, 14, "Users")]
    columns = "lt_id lt_namespace lt_title"
    write_table(tmp_path, "linktarget", columns, targets, "aawiki-20260101")
    prepare(tmp_path, tmp_path / "out", SETTINGS)
    corpus, report = load_mediawiki(tmp_path)
    assert report.tables["pagelinks"].rows == 637
    assert_is_corpus(tmp_path / "out", corpus)


def test_the_report_of_the_dump_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = old_dump(tmp_path) / "xwiki-1-pagelinks.sql"
    path.write_bytes(path.read_bytes().replace(b"(1,0,'Nowhere')", b"(1,'Nowhere')"))
    staged = tmp_path / "staged"
    staged.mkdir()
    lines: list[str] = []
    with caplog.at_level(logging.WARNING):
        source, features = stage_mediawiki(tmp_path, staged, SETTINGS, lines.append)
    assert "malformed rows left out: 1" in caplog.text
    assert lines == ["reading pages", "reading links", "sorting 4 links", "reading categories"]
    assert source.name == str(path)
    assert sum(batch.num_rows for batch in source.read()) == 3
    assert pq.read_table(features)["id"].to_pylist() == [1, 2, 10]
    assert sorted(p.name for p in staged.iterdir()) == ["features.parquet", "links.parquet"]


def test_what_cannot_be_staged_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    folder = old_dump(tmp_path / "dump")
    write_table(folder, "pagelinks", "pl_from pl_namespace pl_title", [(9, 1, "Other")])
    with pytest.raises(DataError, match="links no two pages of namespace 0"):
        prepare(folder, out, SETTINGS)
    with pytest.raises(DataError, match="There is no file or folder"):
        prepare(tmp_path / "nothing", out, SETTINGS)
    with pytest.raises(DataError, match="reads one file or folder, and 2 sources"):
        prepare([folder, folder], out, SETTINGS)
    assert [path.name for path in tmp_path.glob("*out*")] == [".out.lock"]


def test_links_of_a_later_dump_are_appended(tmp_path: Path) -> None:
    folder, out = old_dump(tmp_path / "dump"), tmp_path / "out"
    first = prepare(folder, out, PrepareSettings(kind="mediawiki", unique=True))
    columns = "pl_from pl_namespace pl_title"
    write_table(folder, "pagelinks", columns, [(1, 0, "O'Brien"), (10, 0, "April")])
    second = prepare(folder, out, SETTINGS, append=True)
    assert (first.added, second.added, second.repeats_dropped) == (3, 1, 1)
