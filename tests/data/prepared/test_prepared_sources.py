"""Corpora, tables, lists, dumps and reviews are prepared as they are loaded."""

from __future__ import annotations

import gzip
import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.dumps import PAGE, Rows, new_dump, old_dump, write_table
from tests.support.prepared_folders import assert_is_corpus, entities

from evergram.data.amazon import load_amazon
from evergram.data.corpus import Corpus
from evergram.data.files import adjacency_list, json_lines
from evergram.data.prepared.prepared_record import PreparedRecord
from evergram.data.prepared.sources.memory_sources import corpus_of_kind, features_of
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.data.prepared.writing.staged_dump import stage_mediawiki
from evergram.data.tables import load_adjacency_list
from evergram.data.wikipedia import dump_files
from evergram.data.wikipedia.links import load_mediawiki
from evergram.errors import DataError

PAIRS = pa.table({"query": [3, 1, 3], "candidate": [1, 2, 4], "value": [0.5, 1.0, 2.0]})


def features(**columns: list[object]) -> pa.Table:
    return pa.table({"id": [1, 2, 3], **columns})


@pytest.mark.parametrize("shared", [False, True])
def test_a_corpus_with_features_is_prepared_as_it_is(tmp_path: Path, shared: bool) -> None:
    tags = features(tags=[["a", "b"], [], ["c"]], kind=["x", None, "y"])
    corpus = Corpus.from_tables(PAIRS, tags, tags, shared_ids=shared)
    prepare(corpus, tmp_path / "out")
    assert_is_corpus(tmp_path / "out", corpus)


def test_shared_ids_have_one_feature_of_a_name() -> None:
    one, other = features(tags=["a", "b", "c"]), features(tags=["a", "b", "d"])
    corpus = Corpus.from_tables(PAIRS, one, other, shared_ids=True)
    with pytest.raises(DataError, match=r"'tags' differs"):
        features_of(corpus)
    more = features(tags=["a", "b", "c"], kind=["x", "y", "z"])
    with pytest.raises(DataError, match="give both sides all"):
        features_of(Corpus.from_tables(PAIRS, one, more, shared_ids=True))
    apart = Corpus.from_tables(PAIRS, one, features(kind=["x", "y", "z"]), shared_ids=True)
    assert set(features_of(apart)) == {"query", "candidate"}


def test_a_table_is_held_to_the_rules_of_a_corpus_in_memory(tmp_path: Path) -> None:
    table = pa.table({"query": pa.array(["a"], pa.string_view()), "candidate": [1], "price": [2]})
    summary = prepare(table, tmp_path / "out")
    assert (summary.interactions, summary.unread) == (1, ["price"])
    assert entities(tmp_path / "out", "query")["id"].to_pylist() == ["a"]
    with pytest.raises(DataError, match="query and candidate are both the column 'query'"):
        prepare(table, tmp_path / "other", PrepareSettings(columns={"candidate": "query"}))
    twice = pa.table([pa.array([1])] * 3, names=["query", "candidate", "query"])
    with pytest.raises(DataError, match="has two columns 'query'"):
        prepare(twice, tmp_path / "other")


def test_another_loader_reads_the_source(tmp_path: Path) -> None:
    lists = tmp_path / "lists.txt"
    lists.write_text("0 5 6\n1 6\n")
    prepare(lists, tmp_path / "out", PrepareSettings(kind="adjacency_list"))
    assert_is_corpus(tmp_path / "out", corpus_of_kind("adjacency_list", [lists], None))
    with pytest.raises(DataError, match="nothing"):
        prepare(lists, tmp_path / "other", PrepareSettings(kind="nothing"))
    with pytest.raises(DataError, match="sources is dict"):
        prepare({"query": [1]}, tmp_path / "other")
    with pytest.raises(DataError, match="one file or folder"):
        prepare([lists, lists], tmp_path / "other", PrepareSettings(kind="adjacency_list"))
    assert not (tmp_path / "other").exists()


def test_shared_ids_are_not_appended_to_ids_of_their_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(Corpus.from_tables(PAIRS), out)
    with pytest.raises(DataError, match=r"ids of their own, and those of Corpus\(.* share theirs"):
        prepare(Corpus.from_tables(PAIRS, shared_ids=True), out, append=True)
    prepare(Corpus.from_tables(PAIRS), tmp_path / "shared", PrepareSettings(shared_ids=True))
    assert_is_corpus(tmp_path / "shared", Corpus.from_tables(PAIRS, shared_ids=True))


DUMPS = PrepareSettings(kind="mediawiki", memory="256MiB", threads=1)


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
def test_a_prepared_dump_is_the_loaded_one(
    dump: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_files, "BLOCK", 1)
    folder, out = dump(tmp_path / "dump"), tmp_path / "out"
    summary = prepare(folder, out, DUMPS)
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
    prepare(folder, tmp_path / "out", DUMPS)
    corpus, report = load_mediawiki(folder)
    assert report.repeated_links > 1_000
    assert len(corpus) > 10_000
    assert_is_corpus(tmp_path / "out", corpus)


def test_the_report_of_the_dump_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = old_dump(tmp_path) / "xwiki-1-pagelinks.sql"
    path.write_bytes(path.read_bytes().replace(b"(1,0,'Nowhere')", b"(1,'Nowhere')"))
    staged = tmp_path / "staged"
    staged.mkdir()
    lines: list[str] = []
    with caplog.at_level(logging.WARNING):
        source, features = stage_mediawiki(tmp_path, staged, DUMPS, lines.append)
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
        prepare(folder, out, DUMPS)
    with pytest.raises(DataError, match="There is no file or folder"):
        prepare(tmp_path / "nothing", out, DUMPS)
    with pytest.raises(DataError, match="reads one file or folder, and 2 sources"):
        prepare([folder, folder], out, DUMPS)
    assert [path.name for path in tmp_path.glob("*out*")] == [".out.lock"]


def test_links_of_a_later_dump_are_appended(tmp_path: Path) -> None:
    folder, out = old_dump(tmp_path / "dump"), tmp_path / "out"
    first = prepare(folder, out, PrepareSettings(kind="mediawiki", unique=True))
    columns = "pl_from pl_namespace pl_title"
    write_table(folder, "pagelinks", columns, [(1, 0, "O'Brien"), (10, 0, "April")])
    second = prepare(folder, out, DUMPS, append=True)
    assert (first.added, second.added, second.repeats_dropped) == (3, 1, 1)


REVIEWS = PrepareSettings(kind="amazon", memory="256MiB", threads=1)


def write_reviews(folder: Path, reviews: int, *, metadata: bool) -> Path:
    """Write reviews in random order of time, and products, one of them twice."""
    folder.mkdir()
    draw = random.Random(0)
    lines = []
    for _ in range(reviews):
        names = {"reviewerID": f"U{draw.randint(0, 30)}", "asin": f"P{draw.randint(0, 20)}"}
        numbers = {"overall": draw.randint(1, 5), "unixReviewTime": draw.randint(0, 50)}
        lines.append(json.dumps({**names, **numbers, "reviewText": "Good.\n"}))
    (folder / "reviews.json.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    if metadata:
        products = [
            {"asin": f"P{i}", "brand": f"B{i % 3}", "category": [f"C{i % 4}", "All &amp; more"]}
            for i in [*range(25), 3]
        ]
        (folder / "meta.json").write_text("\n".join(map(json.dumps, products)))
    return folder


@pytest.mark.parametrize("metadata", [False, True])
def test_prepared_reviews_are_the_loaded_ones(
    metadata: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "BLOCK", 400)
    folder = write_reviews(tmp_path / "reviews", 300, metadata=metadata)
    summary = prepare(folder, tmp_path / "out", REVIEWS)
    corpus = load_amazon(folder)
    assert set(corpus.candidates.features) == ({"brand", "category"} if metadata else set())
    assert_is_corpus(tmp_path / "out", corpus)
    assert summary.rows_read == 300


def test_damage_is_named(tmp_path: Path) -> None:
    folder = write_reviews(tmp_path / "reviews", 3, metadata=False)
    path = folder / "reviews.json"
    path.write_bytes(gzip.decompress((folder / "reviews.json.gz").read_bytes()) + b"\n{}\n")
    (folder / "reviews.json.gz").unlink()
    with pytest.raises(DataError, match=r"reviews\.json row 4: reviewerID is None"):
        prepare(folder, tmp_path / "out", REVIEWS)
    with pytest.raises(DataError, match="There is no file or folder"):
        prepare(tmp_path / "nothing", tmp_path / "out", REVIEWS)
    path.write_text("")
    with pytest.raises(DataError, match="has no rows"):
        prepare(folder, tmp_path / "out", REVIEWS)
    assert not (tmp_path / "out").exists()


LISTS = PrepareSettings(kind="adjacency_list", memory="256MiB", threads=1)


@pytest.mark.parametrize(
    ("last", "block"), [("7 8", 10), ("7 08", 10), ("ann 8", 1 << 20), (f"7 {2**63}", 10)]
)
def test_a_prepared_list_is_the_loaded_one(
    last: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are texts if one of them is, wherever it stands."""
    monkeypatch.setattr(adjacency_list, "BLOCK", block)
    draw = random.Random(0)
    lines = [
        " ".join(str(draw.randint(0, 30)) for _ in range(draw.randint(0, 9))) for _ in "x" * 50
    ]
    path = tmp_path / "lists.txt.gz"
    path.write_bytes(gzip.compress("\n".join([*lines, last]).encode()))
    prepare(path, tmp_path / "out", LISTS)
    assert_is_corpus(tmp_path / "out", load_adjacency_list(path))


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    for content, message in [
        (b"0 1\n\n2 NULL\n", "row 3: candidate is 'NULL'"),
        (b"0\n1\n", "has no pairs"),
        (b"0 1\n1 2.5\n", "numbers with decimals"),
        (b"0 \xff\n", "is not in UTF-8"),
    ]:
        (tmp_path / "lists.txt").write_bytes(content)
        with pytest.raises(DataError, match=message):
            prepare(tmp_path / "lists.txt", tmp_path / "out", LISTS)
        assert not (tmp_path / "out").exists()
