"""Corpora, tables, features, lists, dumps and reviews are prepared as they are loaded."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.dumps import PAGE, Rows, new_dump, old_dump, write_table
from tests.support.prepared import assert_same

from evergram.data import (
    Corpus,
    PrepareSettings,
    amazon,
    load_adjacency_list,
    load_amazon,
    load_mediawiki,
    load_table,
    prepare,
)
from evergram.data.prepared.mapped_corpus import load_prepared
from evergram.data.prepared.record import PreparedRecord
from evergram.data.reading import interaction_source
from evergram.data.wikipedia import dump as dump_module
from evergram.errors import DataError


def checked(sources: Any, out: Path, expected: Corpus, **chosen: Any) -> Any:
    """Prepare sources, check that the folder is the expected corpus, and return the summary."""
    summary = prepare(sources, out, PrepareSettings(memory="256MiB", threads=1, **chosen))
    assert_same(expected, load_prepared(out))
    return summary


PAIRS = pa.table({"query": [3, 1, 3], "candidate": [1, 2, 4], "value": [0.5, 1.0, 2.0]})
WORDS = pa.table({"query": [3, 1, 3], "candidate": ["a", "b", "a"]})
FEATURES = pa.table(
    {
        "id": ["b", "a", "unseen"],
        "Genre": [["x", "y"], [], ["z"]],
        "genre": pa.array([1, None, 3], pa.int16()),
        "new": [True, False, None],
        "maker": pa.array(["m", "n", "m"]).dictionary_encode(),
        "codes": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        'odd "name"; --': ["p", "q", "r"],
    }
)


def features(**columns: list[object]) -> pa.Table:
    return pa.table({"id": [1, 2, 3], **columns})


def test_features_of_any_type_are_those_of_the_corpus(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.parquet" for number in range(2)]
    for path, table in zip(paths, (FEATURES.slice(0, 1), FEATURES.slice(1)), strict=True):
        pq.write_table(table, path)
    expected = Corpus.from_tables(WORDS, None, FEATURES)
    checked(WORDS, tmp_path / "out", expected, candidate_features=paths)


def test_numbers_and_times_of_text_are_those_of_the_corpus_of_the_file(tmp_path: Path) -> None:
    events, described, out = (tmp_path / name for name in ("t.csv", "f.csv", "out"))
    events.write_text("user,sku\n3,a\n1,b\n3,c\n")
    lines = ["sku;price;stock;listed;tags", "a;1.234,5;3;2025-01-01;x|y"]
    described.write_text("\n".join([*lines, "b;;n/a;2025-02-01;", "c;7;9;;y"]))
    chosen: dict[str, Any] = {
        "columns": {"query": "user", "candidate": "sku"},
        "candidate_features": described,
    }
    expected = load_table(events, **chosen)
    checked(events, out, expected, **chosen)
    found = {n: f.vocabulary.keys.to_pylist() for n, f in expected.candidates.features.items()}
    assert (found["price"], found["stock"], len(found["listed"])) == ([7, 1234.5], [3, 9], 2)
    checked(expected, tmp_path / "again", expected)
    described.write_text("sku;price;stock;listed;tags\nd;cheap;3;2025-01-01;")
    events.write_text("user,sku\n3,d\n")
    with pytest.raises(DataError, match=r"'price' is a number.*a category"):
        prepare(events, out, PrepareSettings(**chosen), append=True)


@pytest.mark.parametrize("shared", [False, True])
def test_a_corpus_with_features_is_prepared_as_it_is(tmp_path: Path, shared: bool) -> None:
    tags = features(tags=[["a", "b"], [], ["c"]], kind=["x", None, "y"])
    corpus = Corpus.from_tables(PAIRS, tags, tags, shared_ids=shared)
    checked(corpus, tmp_path / "out", corpus)


@pytest.mark.parametrize("sides", ["same", "apart", "clash"])
def test_shared_ids_have_one_table_of_entities(tmp_path: Path, sides: str) -> None:
    pairs, one = pa.table({"query": [1, 2], "candidate": [2, 3]}), features(x=["a", "b", "c"])
    other = one.rename_columns(["id", "y" if sides == "apart" else "x"])
    pq.write_table(one, tmp_path / "one.parquet")
    pq.write_table(other, tmp_path / "other.parquet")
    chosen: dict[str, Any] = {
        "shared_ids": True,
        "query_features": tmp_path / "one.parquet",
        "candidate_features": tmp_path / ("one.parquet" if sides == "same" else "other.parquet"),
    }
    if sides == "clash":
        with pytest.raises(DataError, match=r"Both tables of features have 'x'"):
            prepare(pairs, tmp_path / "out", PrepareSettings(**chosen))
        return
    expected = Corpus.from_tables(pairs, one, one if sides == "same" else other, shared_ids=True)
    checked(pairs, tmp_path / "out", expected, **chosen)


def test_shared_ids_of_a_corpus(tmp_path: Path) -> None:
    one, out = features(tags=["a", "b", "c"]), tmp_path / "out"
    for other, why in [
        (features(tags=["a", "b", "d"]), "'tags' differs"),
        (features(tags=["a", "b", "c"], kind=["x", "y", "z"]), "give both sides all"),
    ]:
        with pytest.raises(DataError, match=why):
            prepare(Corpus.from_tables(PAIRS, one, other, shared_ids=True), out)
    apart = Corpus.from_tables(PAIRS, one, features(kind=["x", "y", "z"]), shared_ids=True)
    prepare(apart, tmp_path / "apart")
    assert set(load_prepared(tmp_path / "apart").queries.features) == {"tags"}
    plain, shared = Corpus.from_tables(PAIRS), Corpus.from_tables(PAIRS, shared_ids=True)
    checked(plain, tmp_path / "shared", shared, shared_ids=True)
    prepare(plain, out)
    with pytest.raises(DataError, match=r"ids of their own, and those of Corpus\(.* share theirs"):
        prepare(shared, out, append=True)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"key": ["a"]}, "no column 'id'"),
        ({"id": ["a", "a"], "x": [1, 2]}, "the id a comes twice"),
        ({"id": ["a", None], "x": [1, 2]}, "row 2: id is empty"),
        ({"id": ["a"], "x": [[1.5]]}, "lists of floats"),
        ({"id": ["a"], "x": [["p", None]]}, "null inside a list"),
        ({"id": ["a"], "count": [1]}, "rename it"),
        ({"id": ["other"], "x": [1]}, "none of the ids"),
        ({"id": ["a", "b"], "x": ["2025-01-01", "2025-01-01T00:00Z"]}, "row 1: x is '2025-01-01'"),
    ],
)
def test_what_is_no_feature_is_refused(
    tmp_path: Path, columns: dict[str, list[object]], why: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    lines: list[str] = []
    settings = PrepareSettings(candidate_features=[tmp_path / "f.parquet"])
    with pytest.raises(DataError, match=why):
        prepare(WORDS, tmp_path / "out", settings, progress=lines.append)
    assert not (tmp_path / "out").exists()
    # Before hours of interactions are read, but for ids of the other side.
    assert bool(lines) == (why == "none of the ids")


def test_texts_are_no_features_of_integers(tmp_path: Path) -> None:
    pq.write_table(FEATURES, tmp_path / "f.parquet")
    pq.write_table(FEATURES.select(["id"]), tmp_path / "g.parquet")
    both: list[str | Path] = [tmp_path / "f.parquet", tmp_path / "g.parquet"]
    for settings, why in [
        (PrepareSettings(query_features=both[0]), "theirs are text, such as 'b'"),
        (PrepareSettings(candidate_features=both), "has a column 'Genre' and"),
    ]:
        with pytest.raises(DataError, match=why):
            prepare(WORDS, tmp_path / "out", settings)


def test_a_table_is_held_to_the_rules_of_a_corpus_in_memory(tmp_path: Path) -> None:
    table = pa.table({"query": pa.array(["a"], pa.string_view()), "candidate": [1], "price": [2]})
    summary = prepare(table, tmp_path / "out")
    assert (summary.interactions, summary.unread) == (1, ["price"])
    assert "There are no times.\nNot read: price; --column time=NAME or" in str(summary)
    lists = tmp_path / "lists.txt"
    lists.write_text("0 5 6\n1 6\n")
    twice = pa.table([pa.array([1])] * 3, names=["query", "candidate", "query"])
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (table, {"columns": {"candidate": "query"}}, "query and candidate are both the column"),
        (twice, {}, "has two columns 'query'"),
        (lists, {"kind": "nothing"}, "nothing"),
        ({"query": [1]}, {}, "sources is dict"),
        ([lists, lists], {"kind": "adjacency_list"}, "one file or folder, and 2 sources"),
        (tmp_path / "nowhere", {"kind": "amazon"}, "There is no file or folder"),
        (tmp_path / "nowhere", {"kind": "mediawiki"}, "There is no file or folder"),
    ]
    for sources, chosen, why in cases:
        with pytest.raises(DataError, match=why):
            prepare(sources, tmp_path / "other", PrepareSettings(**chosen))
    assert not (tmp_path / "other").exists()


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
    dump: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dump_module, "BLOCK", 1)
    folder, out = dump(tmp_path / "dump"), tmp_path / "out"
    path = folder / "xwiki-1-pagelinks.sql"
    path.write_bytes(path.read_bytes().replace(b"(1,0,'Nowhere')", b"(1,'Nowhere')"))
    corpus, _ = load_mediawiki(folder)
    summary = checked(folder, out, corpus, kind="mediawiki")
    assert ("malformed rows left out: 1" in caplog.text) == (dump is old_dump)
    assert summary.rows_read == summary.interactions == len(corpus) == 3
    assert {p.name for p in out.glob("[a-z]*")} == {"entities.arrow", "parts", "prepared.json"}
    assert PreparedRecord.load(out).parts[0].sources == [str(path)]


def test_many_links_are_in_the_order_of_the_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several blocks, and several batches of distinct links, some of them at a border.
    monkeypatch.setattr(dump_module, "BLOCK", 5_000)
    monkeypatch.setattr("evergram.data.prepared.engine.FETCHED", 2_048)
    folder = large_dump(tmp_path / "dump", 300, 20_000)
    corpus, report = load_mediawiki(folder)
    assert report.repeated_links > 1_000
    assert len(corpus) > 10_000
    checked(folder, tmp_path / "out", corpus, kind="mediawiki")


def test_links_of_a_later_dump_are_appended(tmp_path: Path) -> None:
    folder, out = old_dump(tmp_path / "dump"), tmp_path / "out"
    settings = PrepareSettings(kind="mediawiki", unique=True)
    first = prepare(folder, out, settings)
    columns = "pl_from pl_namespace pl_title"
    write_table(folder, "pagelinks", columns, [(1, 0, "O'Brien"), (10, 0, "April")])
    second = prepare(folder, out, settings, append=True)
    assert (first.added, second.added, second.repeats_dropped) == (3, 1, 1)
    write_table(folder, "pagelinks", columns, [(9, 1, "Other")])
    with pytest.raises(DataError, match="links no two pages of namespace 0"):
        prepare(folder, tmp_path / "other", settings)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("metadata", [False, True])
def test_prepared_reviews_are_the_loaded_ones(
    metadata: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reviews in random order of time, and products, one of them twice."""
    monkeypatch.setattr(amazon, "BLOCK", 400)
    draw, lines, out = random.Random(0), [], tmp_path / "out"
    for _ in range(100):
        names = {"reviewerID": f"U{draw.randint(0, 30)}", "asin": f"P{draw.randint(0, 20)}"}
        numbers = {"overall": draw.randint(1, 5), "unixReviewTime": draw.randint(0, 50)}
        lines.append(json.dumps({**names, **numbers, "reviewText": "Good.\n"}))
    path = tmp_path / "r" / "reviews.json.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    if metadata:
        products = [
            {"asin": f"P{i}", "brand": f"B{i % 3}", "category": [f"C{i % 4}", "All &amp; more"]}
            for i in [*range(25), 3]
        ]
        (path.parent / "meta.json").write_text("\n".join(map(json.dumps, products)))
    corpus = load_amazon(path.parent)
    assert set(corpus.candidates.features) == ({"brand", "category"} if metadata else set())
    assert checked(path.parent, out, corpus, kind="amazon").rows_read == 100
    for content, why in [(b"{}\n", r"row 1: reviewerID is None"), (b"", "has no rows")]:
        path.write_bytes(gzip.compress(content))
        (path.parent / "meta.json").unlink(missing_ok=True)
        with pytest.raises(DataError, match=why):
            prepare(path.parent, tmp_path / "other", PrepareSettings(kind="amazon"))


@pytest.mark.parametrize(
    ("last", "block"), [("7 8", 10), ("7 08", 10), ("ann 8", 1 << 20), (f"7 {2**63}", 10)]
)
def test_a_prepared_list_is_the_loaded_one(
    last: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are texts if one of them is, wherever it stands."""
    monkeypatch.setattr(interaction_source, "BLOCK", block)
    draw = random.Random(0)
    lines = [
        " ".join(str(draw.randint(0, 30)) for _ in range(draw.randint(0, 9))) for _ in "x" * 50
    ]
    path = tmp_path / "lists.txt.gz"
    path.write_bytes(gzip.compress("\n".join([*lines, last]).encode()))
    checked(path, tmp_path / "out", load_adjacency_list(path), kind="adjacency_list")


def test_a_list_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for content, message in [
        (b"0 1\n\n2 NULL\n", "row 3: candidate is 'NULL'"),
        (b"0\n1\n", "has no pairs"),
        (b"0 1\n1 2.5\n", "numbers with decimals"),
        (b"0 \xff\n", "is not in UTF-8"),
    ]:
        (tmp_path / "lists.txt").write_bytes(content)
        settings = PrepareSettings(kind="adjacency_list")
        with pytest.raises(DataError, match=message):
            prepare(tmp_path / "lists.txt", tmp_path / "out", settings)
        assert not (tmp_path / "out").exists()
