"""The graph of pages from MediaWiki's dumps, in their schemas."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.dumps import LINKS, MEMBERS, PAGE, PAGES, Rows, new_dump, old_dump, write_table

from evergram.data.corpus import Corpus
from evergram.data.wikipedia import dump_files
from evergram.data.wikipedia.dump_files import DumpFiles
from evergram.data.wikipedia.dump_links import DumpLinks
from evergram.data.wikipedia.dump_pages import MISSING, Keys, Pages, read_pages
from evergram.data.wikipedia.links import load_mediawiki
from evergram.data.wikipedia.page_features import page_features, title_ngrams
from evergram.errors import DataError


def pairs(corpus: Corpus) -> list[tuple[Any, Any]]:
    keys = corpus.queries.vocabulary.keys
    query, candidate = (keys.take(corpus.interactions[n]) for n in ("query", "candidate"))
    return list(zip(query.to_pylist(), candidate.to_pylist(), strict=True))


def bags(corpus: Corpus, feature: str) -> dict[Any, set[str]]:
    column = corpus.candidates.features[feature]
    keys = column.vocabulary.keys.to_pylist()
    ends = column.offsets.tolist()
    rows = column.indices.tolist()
    return {
        page: {keys[r] for r in rows[ends[i] : ends[i + 1]]}
        for i, page in enumerate(corpus.candidates.vocabulary.keys.to_pylist())
    }


@pytest.mark.parametrize("dump", [old_dump, new_dump])
def test_articles_link_to_articles(
    tmp_path: Path, dump: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_files, "BLOCK", 1)
    corpus, report = load_mediawiki(dump(tmp_path))
    assert corpus.shared_ids
    assert corpus.queries.vocabulary.keys.type == pa.int64()
    assert pairs(corpus) == [(1, 2), (2, 1), (10, 2)]
    assert bags(corpus, "category") == {
        1: {"Months", "Months of spring"},
        2: {"People"},
        10: {"Months"},
    }
    assert bags(corpus, "title") == {
        1: {"april"},
        2: {"conan", "o", "brien", "conan o", "o brien"},
        10: {"été", "saison", "été saison"},
    }
    for name in ("title", "category"):
        both = (side.features[name].vocabulary for side in (corpus.queries, corpus.candidates))
        assert next(both) is next(both)
    assert (report.pages, report.redirects, report.dead_redirects) == (3, 6, 4)
    assert report.warnings() == []


@pytest.mark.parametrize("dump", [old_dump, new_dump])
def test_the_report_says_what_became_of_every_link(tmp_path: Path, dump: Any) -> None:
    _, report = load_mediawiki(dump(tmp_path))
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
    assert pairs(corpus) == [(1, 2), (2, 1)]
    assert report.links_to_dead_redirects == 6
    assert report.repeated_links == 0


def test_targets_that_linktarget_does_not_have_are_counted(tmp_path: Path) -> None:
    new_dump(tmp_path)
    write_table(tmp_path, "pagelinks", "pl_from pl_target_id", [(1, 5), (1, None), (2, 1000)])
    write_table(tmp_path, "linktarget", "lt_id lt_namespace lt_title", [(1000, 0, "April")])
    corpus, report = load_mediawiki(tmp_path)
    assert pairs(corpus) == [(2, 1)]
    assert report.links_to_unknown_targets == 2
    # One is of a redirect, and one of an article without a link.
    assert (report.categories_unknown, report.categories_not_of_articles) == (3, 2)
    assert (report.pages, report.pages_without_links) == (3, 1)
    assert bags(corpus, "category") == {1: set(), 2: set()}


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
    assert pairs(corpus) == [(1, 2), (2, 1), (10, 2)]
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
        assert (2, 1) in pairs(load_mediawiki(tmp_path)[0])
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
    assert pairs(corpus) == [(1, 2), (2, 1)]
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
    assert pairs(load_mediawiki(tmp_path, "ywiki-2")[0]) == [(1, 2), (2, 1), (10, 2)]
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
    assert {(1426, 2051), (2051, 2034)} <= set(pairs(corpus))
    assert report.tables["pagelinks"].rows == 637
    assert report.tables["categorylinks"].rows == 156


SMALL_PAGE = b"CREATE TABLE `page` (\n  `page_id` int,\n  `page_title` varbinary(9)\n);\n"
ROWS = b"INSERT INTO `page` VALUES (1,'A'),(2,'B'),(x),(3,'C');\n"


def test_blocks_hold_all_rows_and_the_report_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_files, "BLOCK", 2)
    (tmp_path / "w-page.sql").write_bytes(SMALL_PAGE + ROWS)
    dump = DumpFiles(tmp_path, None)
    blocks = list(dump.blocks(dump.open("page"), "page_id", "page_title"))
    assert [id_ for block in blocks for id_ in block["page_id"].to_pylist()] == [1, 2, 3]
    assert blocks[0]["page_title"].type == pa.string()
    assert (dump.report.tables["page"].rows, dump.report.tables["page"].malformed) == (3, 1)
    error = dump.refuse(dump.open("page"), "links no two pages;")
    assert "links no two pages; " in str(error)
    assert "malformed rows left out: 1; the first is row 3" in str(error)


def test_features_are_of_the_articles_that_are_linked(tmp_path: Path) -> None:
    links = DumpLinks(old_dump(tmp_path))
    features = links.features(np.array([0, 1]))
    assert features["id"].to_pylist() == [1, 2]
    assert features["category"].to_pylist() == [["Months", "Months of spring"], ["People"]]
    assert links.report.pages_without_links == 1
    assert links.features(np.array([0, 8]), 2)["category"].to_pylist() == [["Months"]] * 2


def pages_of(folder: Path, namespace: int = 0) -> Pages:
    dump = DumpFiles(folder, None)
    return read_pages(dump, dump.open("page"), dump.open("redirect"), namespace)


@given(
    keys=st.lists(st.integers(-5, 40), unique=True), asked=st.lists(st.none() | st.integers(-9, 45))
)
def test_keys_are_at_their_places(keys: list[int], asked: list[int | None]) -> None:
    expected = [keys.index(a) if a in keys else -1 for a in asked if a is not None]
    numbers = pa.array([a for a in asked if a is not None], pa.int64())
    assert Keys(pa.array(keys, pa.int64())).places(numbers).tolist() == expected
    texts = Keys(pa.array([str(key) for key in keys], pa.string()))
    assert texts.places(numbers.cast(pa.string())).tolist() == expected


def test_redirects_lead_to_articles(tmp_path: Path) -> None:
    pages = pages_of(old_dump(tmp_path))
    ids = pages.ids.keys.to_pylist()
    assert ids == [page[0] for page in PAGES if page[1] == 0]
    ends = {i: ids[end] for i, end in zip(ids, pages.article, strict=True) if end != MISSING}
    # 3 and 4 lead to 2; 5 and 6 to each other, 7 to another wiki, 8 to nothing.
    assert ends == {1: 1, 2: 2, 3: 2, 4: 2, 10: 10}


def test_long_chains_end_at_their_article_and_loops_nowhere(tmp_path: Path) -> None:
    chain = range(1, 31)
    rows = [(i, 0, f"P{i}", int(i < 30)) for i in chain]
    write_table(tmp_path, "page", "page_id page_namespace page_title page_is_redirect", rows)
    columns = "rd_from rd_namespace rd_title"
    write_table(tmp_path, "redirect", columns, [(i, 0, f"P{i + 1}") for i in chain if i < 30])
    assert pages_of(tmp_path).article.tolist() == [29] * 30
    write_table(tmp_path, "redirect", columns, [(i, 0, f"P{i % 5 + 1}") for i in chain if i < 30])
    assert pages_of(tmp_path).article.tolist() == [MISSING] * 29 + [29]


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
