"""The index of a segment: nearly exact, never a dead row, and not needed. Codes choose the rows of
a search, vectors score them; a query that codes do not answer is searched without them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import same_hits
from tests.support.dictionary_store import DictionaryStore
from tests.support.planted import planted, recall
from tests.support.snapshot_rows import files

from evergram.errors import DataError
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.snapshot import faiss_codes
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Floats, Rows, Space

ROWS, DIM = 4_000, 32
CODES = [FLOAT32, IndexCodes("float16", 2), IndexCodes("int8", 4), IndexCodes("binary", 8)]
# Bytes of a row's code; faiss adds two floats to the bits.
BYTES = {"float32": 4 * DIM, "float16": 2 * DIM, "int8": DIM, "binary": DIM // 8 + 8}


def filled(folder: Path, vectors: Floats) -> SnapshotStore:
    space = Space(0, vectors.shape[1], "sha256:0")
    with SnapshotStore.open(str(folder), "int64") as made:
        made.load(space, [Rows(0, pa.array(range(len(vectors))), vectors)])
    return SnapshotStore(folder, index_from=1_000)


def index_of(store: SnapshotStore) -> Any:
    (index,) = store._folder.indexes.values()
    return index


@dataclass(frozen=True)
class Indexed:
    folder: Path
    store: SnapshotStore
    codes: IndexCodes
    vectors: Floats
    queries: Floats


@pytest.fixture(scope="module", params=CODES, ids=lambda codes: codes.kind)
def indexed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Indexed]:
    vectors, queries = planted(ROWS, DIM)
    folder = tmp_path_factory.mktemp("indexed") / "store"
    with filled(folder, vectors) as store:
        assert store.build_index(request.param) == [0]
        yield Indexed(folder, store, request.param, vectors, queries)


def test_an_index_finds_nearly_all_of_the_best(indexed: Indexed) -> None:
    store, codes, vectors, queries = indexed.store, indexed.codes, indexed.vectors, indexed.queries
    record = index_of(store).record
    assert record.index_codes == codes
    assert record.recall >= 0.95
    assert 2 * record.probes < record.lists or codes is not FLOAT32
    assert index_of(store)._index.code_size == BYTES[codes.kind]
    # `recall` compares every score with the product of the vectors themselves.
    assert recall(store, 0, vectors, queries, 10) >= 0.9
    assert recall(store, 0, vectors, queries, 10, np.arange(0, ROWS, 7)) == 1.0
    assert len(store.search({0: queries[:1]}, ROWS)[0]) == ROWS
    # Opened again, in another process's place, it is the same index.
    with SnapshotStore.open(str(indexed.folder)) as again:
        assert index_of(again).record == record
        assert recall(again, 0, vectors, queries, 10) >= 0.9
    if codes is FLOAT32:
        return
    # A past version's queries: those of one coordinate are far from every cluster.
    far: Floats = 1e-3 * np.vstack([np.eye(DIM), -np.eye(DIM)]).astype(np.float32)
    assert recall(store, 0, vectors, far, 10) >= 0.99


def test_rows_that_are_gone_or_new_are_as_in_the_oracle(indexed: Indexed, tmp_path: Path) -> None:
    vectors, queries = indexed.vectors, indexed.queries
    shutil.copytree(indexed.folder, tmp_path / "store")
    oracle = DictionaryStore()
    oracle.load(Space(0, DIM, "sha256:0"), [Rows(0, pa.array(range(ROWS)), vectors)])
    with SnapshotStore(tmp_path / "store", index_from=1_000) as store:
        gone = np.argsort(-(queries[0] @ vectors.T))[:5].tolist()
        for each in (store, oracle):
            each.delete(gone[:3])
            each.upsert(Rows(0, pa.array([gone[3], ROWS]), np.stack([queries[0], queries[0] * 2])))
        hits, truth = (each.search({0: queries[:1]}, 3)[0] for each in (store, oracle))
        assert hits.ids.to_pylist() == truth.ids.to_pylist()
        assert not set(gone[:3]) & set(hits.ids.to_pylist())
        same_hits(store, oracle, {0: queries[:2]}, ROWS)
        same_hits(store, oracle, {0: queries[:2]}, 10, ids=list(range(0, ROWS, 7)))
        if indexed.codes.kind == "int8":
            store.build_index()
            assert len(files(store)) == 3
            same_hits(store, oracle, {0: queries[:2]}, ROWS)


def test_without_faiss_search_is_exact_and_building_says_what_is_missing(
    indexed: Indexed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    shutil.copytree(indexed.folder, tmp_path / "store")
    with SnapshotStore(tmp_path / "store", index_from=1_000) as store:
        with pytest.raises(DataError, match=r"pip install 'evergram\[faiss\]'"):
            store.build_index(IndexCodes("int8", 9))
        assert recall(store, 0, indexed.vectors, indexed.queries, 10) == 1.0
        store.upsert(Rows(0, pa.array([ROWS]), indexed.queries[:1] * 9))
        assert store.search({0: indexed.queries[:1]}, 1)[0].ids.to_pylist() == [ROWS]


def test_a_query_that_binary_codes_do_not_answer_is_searched_exactly(tmp_path: Path) -> None:
    """A squared length behind a vector is the smallest of its values, and decides a distance."""
    base, queries = planted(ROWS, DIM)
    base *= np.exp(0.4 * np.random.default_rng(3).standard_normal((ROWS, 1))).astype(np.float32)
    lengths = (base**2).sum(axis=1, keepdims=True) / 1024
    vectors = np.hstack([base, lengths]).astype(np.float32)
    store = filled(tmp_path / "store", vectors)
    store.build_index(IndexCodes("binary", 8))
    distances = np.hstack([queries, np.full((len(queries), 1), -512, np.float32)])
    part = store._current().parts[0]
    index = index_of(store)
    answers = faiss_codes.search(
        index._index, part, distances, 10, index.record.lists, index.record.index_codes
    )
    assert all(answer is None for answer in answers)
    assert recall(store, 0, vectors, distances, 10) == 1.0
    store.close()


def test_an_index_is_built_anew_for_other_codes_alone(tmp_path: Path) -> None:
    vectors, queries = planted(1_500, DIM)
    store = filled(tmp_path / "store", vectors)
    before: list[str] = []
    for codes in (FLOAT32, CODES[2], IndexCodes("int8", 6), FLOAT32):
        # A reader that has the last index open goes on with it while it is replaced.
        with SnapshotStore.open(str(tmp_path / "store")) as reader:
            reader.search({0: queries[:1]}, 3)
            store.build_index(codes)
            assert len(reader.search({0: queries[:1]}, 3)[0]) == 3
        after = files(store)
        assert after != before
        assert sum(name.endswith(".faiss") for name in after) == 1
        stamps = [path.stat().st_mtime_ns for path in sorted((tmp_path / "store").rglob("*.*"))]
        store.build_index(codes)
        assert stamps == [p.stat().st_mtime_ns for p in sorted((tmp_path / "store").rglob("*.*"))]
        assert files(store) == after
        before = after
    store.close()


def test_codes_are_removed_where_an_index_of_whole_vectors_would_not_be_faster(
    tmp_path: Path,
) -> None:
    # Without clusters the best are in all lists.
    vectors = np.random.default_rng(0).standard_normal((1_000, DIM)).astype(np.float32)
    store = filled(tmp_path / "store", vectors)
    store.build_index(IndexCodes("int8", 4))
    # A kill between the record and the removal leaves a file, which the next write removes.
    (index,) = (tmp_path / "store" / "segments").glob("*.faiss")
    kept = index.read_bytes()
    assert store.build_index() == []
    assert "an index would not be faster: " in store.unindexed[0]
    assert "of the ten best, 95% are needed" in store.unindexed[0]
    assert not [name for name in files(store) if name.endswith(".faiss")]
    index.write_bytes(kept)
    store.close()
    again = SnapshotStore(tmp_path / "store", index_from=2_000)
    assert again._folder.indexes == {}
    assert recall(again, 0, vectors, vectors[:50], 10) == 1.0
    assert again.build_index() == []
    assert again.unindexed == {0: "1000 rows are too few: an index is built of 2000 or more"}
    again.delete([3])
    assert not index.exists()
    again.close()


def test_codes_that_find_too_few_or_hold_too_little_are_refused_and_the_store_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without clusters, and few signs: two bits say next to nothing.
    vectors = np.random.default_rng(0).standard_normal((1_000, 2)).astype(np.float32)
    vectors[17, 1] = 70_000
    with filled(tmp_path / "store", vectors) as store:
        store.build_index(IndexCodes("int8", 100))
        before, record = files(store), (tmp_path / "store/store.json").read_bytes()
        for codes, named in (("binary", "oversample 1 finds"), ("float16", "65504")):
            with pytest.raises(DataError, match=named):
                store.build_index(IndexCodes(codes, 1))
        monkeypatch.delattr(__import__("faiss"), "IndexIVFRaBitQ")
        with pytest.raises(DataError, match=r"faiss 1\.11"):
            store.build_index(IndexCodes("binary", 8))
        assert files(store) == before
        assert (tmp_path / "store/store.json").read_bytes() == record
