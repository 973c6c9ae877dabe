"""The graph of pages from MediaWiki's dumps, in their schemas."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.dumps import LINKS, MEMBERS, PAGE, Rows, new_dump, old_dump, write_table
from tests.support.prepared import bags_of, pairs_of

from evergram.data.wikipedia import dump as dump_module
from evergram.data.wikipedia.dump import load_mediawiki
from evergram.data.wikipedia.page_features import page_features, title_ngrams
from evergram.errors import DataError


@pytest.mark.parametrize("dump", [old_dump, new_dump])
def test_articles_link_to_articles(
    tmp_path: Path, dump: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_module, "BLOCK", 1)
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


def test_redirects_may_be_dropped_and_then_need_no_file(tmp_path: Path) -> None:
    old_dump(tmp_path)
    (tmp_path / "xwiki-1-redirect.sql").unlink()
    with pytest.raises(DataError, match=r"xwiki-1-redirect\.sql .*drop"):
        load_mediawiki(tmp_path)
    corpus, report = load_mediawiki(tmp_path, redirects="drop")
    assert pairs_of(corpus) == [(1, 2), (2, 1)]
    assert report.links_to_dead_redirects == 6
    assert report.repeated_links == 0


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


def test_another_namespace(tmp_path: Path) -> None:
    write_table(old_dump(tmp_path), "pagelinks", "pl_from pl_namespace pl_title", [(9, 1, "Other")])
    with pytest.raises(DataError, match="links no two pages of namespace 1"):
        load_mediawiki(tmp_path, namespace=1)
    with pytest.raises(DataError, match="no page of namespace 2; it has pages of 0, 1"):
        load_mediawiki(tmp_path, namespace=2)


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
    with pytest.raises(DataError, match=rf"no file .*xwiki-1-{name}\.sql"):
        load_mediawiki(tmp_path, "xwiki-1")
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


def test_an_error_says_what_was_malformed(tmp_path: Path) -> None:
    path = old_dump(tmp_path) / "xwiki-1-page.sql"
    create, insert, rows = path.read_bytes().partition(b"INSERT")
    path.write_bytes(create + insert + rows.replace(b"(", b"(x"))
    with pytest.raises(DataError, match=r"no row of it .* rows left out: 10; the first is row 1 "):
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


def test_which_dump_must_be_clear(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file \*-page\.sql"):
        load_mediawiki(tmp_path)
    old_dump(tmp_path)
    old_dump(tmp_path, "ywiki-2")
    with pytest.raises(DataError, match="xwiki-1, ywiki-2; name one"):
        load_mediawiki(tmp_path)
    assert pairs_of(load_mediawiki(tmp_path, "ywiki-2")[0]) == [(1, 2), (2, 1), (10, 2)]
    with pytest.raises(DataError, match=r"no file .*zwiki-pagelinks\.sql"):
        load_mediawiki(tmp_path, "zwiki")
    with pytest.raises(DataError, match="'keep'; it must be 'resolve' or 'drop'"):
        load_mediawiki(tmp_path, "xwiki-1", redirects="keep")  # type: ignore[arg-type]


def test_the_real_links_meet_pages_made_for_them(tmp_path: Path, real_data: Path) -> None:
    for name in ("pagelinks", "categorylinks"):
        dump = real_data / "mediawiki" / f"aawiki-20260101-{name}.sql.gz"
        (tmp_path / dump.name).symlink_to(dump)
    pages = [(1426, 0, "A", 0), (2051, 0, "B", 0), (2034, 0, "C", 0)]
    write_table(tmp_path, "page", PAGE, pages, "aawiki-20260101")
    targets: Rows = [(233, 0, "B"), (158, 0, "C"), (208, 14, "Users")]
    write_table(tmp_path, "linktarget", "lt_id lt_namespace lt_title", targets, "aawiki-20260101")
    corpus, report = load_mediawiki(tmp_path, redirects="drop")
    assert {(1426, 2051), (2051, 2034)} <= set(pairs_of(corpus))
    assert report.tables["pagelinks"].rows == 637
    assert report.tables["categorylinks"].rows == 156


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


def test_title_ngrams() -> None:
    titles = pa.array(["_The_the_THE", "2006年_(film)", "!!!", "", "हिन्दी भाषा"])
    assert [set(bag) for bag in title_ngrams(titles).to_pylist()] == [
        {"the", "the the"},
        {"2006年", "film", "2006年 film"},
        set(),
        set(),
        {"हिन्दी", "भाषा", "हिन्दी भाषा"},
    ]
    assert title_ngrams(pa.array([], pa.string())).to_pylist() == []


def test_rare_ngrams_and_categories_are_left_out() -> None:
    table = page_features(
        pa.array([10, 20, 30]),
        pa.array(["red fish", "blue fish", "fish"]),
        np.array([0, 2, 1, 2, 2]),
        pa.array(["colours", "animals", "colours", "animals", "rivers"]),
        min_pages=2,
    )
    assert table["id"].to_pylist() == [10, 20, 30]
    assert table["title"].to_pylist() == [["fish"]] * 3
    # A page that is twice in a category counts once.
    assert table["category"].to_pylist() == [["colours"], ["colours"], []]
