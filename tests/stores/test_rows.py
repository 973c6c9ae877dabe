"""Rows and their checksums, ids, hits of several versions in one ranking, and slow scores."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import same_hits, scores_of
from tests.support.dictionary_store import DictionaryStore
from tests.support.planted import planted, recall
from tests.support.store_kinds import STORES

from evergram.compatibility.chain import Chain
from evergram.errors import DataError, IntegrityError, ShapeError
from evergram.retrieval.metric_search import Field, by_cosine, by_distance, by_inner_product
from evergram.retrieval.version_maps import NORM_SCALE, VersionMaps
from evergram.stores.store import (
    Floats,
    Hits,
    Rows,
    Space,
    Store,
    best_by,
    merge_hits,
    row_checks,
    scores_by,
)


def rows(ids: pa.Array, version: int = 3, dim: int = 5, seed: int = 0) -> Rows:
    draw = np.random.default_rng(seed)
    return Rows(version, ids, draw.standard_normal((len(ids), dim)).astype(np.float32))


def test_rows_have_a_vector_of_float32_for_each_id() -> None:
    for vectors in (np.zeros((3, 2), np.float32), np.zeros(2, np.float32), np.zeros((2, 2))):
        with pytest.raises((ShapeError, DataError)):
            Rows(0, pa.array([1, 2]), vectors)  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [pa.array([7, -1, 2**40]), pa.array(["a", "é", ""])])
def test_any_changed_bit_changes_the_checksum_of_its_row_alone(ids: pa.Array) -> None:
    one = rows(ids)
    checks = row_checks(one)
    for place in range(5 * 32):
        vectors = one.vectors.copy()
        vectors.view(np.uint32)[1, place // 32] ^= np.uint32(1 << place % 32)
        differ = row_checks(Rows(3, ids, vectors)) != checks
        assert differ.tolist() == [False, True, False]


def slow_check(key: int | str, version: int, vector: list[float]) -> int:
    """The checksum of a row, word after word in Python's own integers."""
    if isinstance(key, str):
        words = [zlib.crc32(key.encode()), 0]
    else:
        words = list(struct.unpack("<II", struct.pack("<q", key)))
    words = [
        version,
        *words,
        *struct.unpack(f"<{len(vector)}I", struct.pack(f"<{len(vector)}f", *vector)),
    ]
    total = 1
    for place, word in enumerate(words, start=1):
        mixed = place
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
            mixed = (mixed ^ mixed >> shift) * factor % 2**32
        total += (mixed | 1) * word
    return total % 2**32


@pytest.mark.parametrize("ids", [[5, -5, 2**40], ["a", "é", ""]])
def test_checksums_are_those_of_the_definition_and_of_files(ids: list[Any]) -> None:
    """They are stored beside the rows, so a later Evergram must compute the same."""
    vectors = np.arange(9, dtype=np.float32).reshape(3, 3)
    for version in (3, 1):
        checks = row_checks(Rows(version, pa.array(ids), vectors)).tolist()
        rows_of = zip(ids, vectors.tolist(), strict=True)
        assert checks == [slow_check(key, version, vector) for key, vector in rows_of]
    assert checks[0] == (3751147483 if ids[0] == 5 else 631072141)


def hits(version: int, *scored: tuple[int, float]) -> Hits:
    ids, scores = zip(*scored, strict=True)
    return Hits(pa.array(ids), np.array(scores, np.float32), np.full(len(ids), version))


def test_the_best_of_several_versions_are_ranked_together_each_id_at_its_latest() -> None:
    merged = merge_hits([hits(0, (1, 0.9), (2, 0.1)), hits(1, (3, 0.5), (4, 0.4))], 3)
    assert merged.ids.to_pylist() == [1, 3, 4]
    assert merged.scores.tolist() == pytest.approx([0.9, 0.5, 0.4])
    assert merged.versions.tolist() == [0, 1, 1]
    merged = merge_hits([hits(0, (1, 0.9)), hits(2, (1, 0.2), (5, 0.1))], 5)
    assert merged.ids.to_pylist() == [1, 5]
    assert merged.versions.tolist() == [2, 2]


def view_rows(version: int, *ids: int) -> Rows:
    return Rows(version, pa.array(ids), np.full((len(ids), 2), version, np.float32))


@pytest.fixture
def store() -> DictionaryStore:
    opened = DictionaryStore()
    for version in (0, 1):
        opened.add_space(Space(version, 2, f"sha256:{version}"))
    opened.upsert(view_rows(0, 1, 2))
    return opened


def test_ids_of_any_container_are_of_the_stores_type(store: DictionaryStore) -> None:
    for ids in ((1, 2), range(1, 3), pa.array([1, 2], pa.int8()), np.array([1, 2])):
        assert store.as_ids(ids).equals(pa.array([1, 2]))
    assert store.as_ids([]).type == pa.int64()
    texts = DictionaryStore("string")
    assert texts.as_ids([]).type == pa.string()
    for kind in (pa.large_string(), pa.string_view()):
        assert texts.as_ids(pa.array(["a"], kind)).equals(pa.array(["a"]))
    others: list[Any] = [["1"], [1, "a"], [2**64], [1, None], pa.array([1.5]), "12", ["\ud800"]]
    for ids in others:
        with pytest.raises(DataError):
            store.as_ids(ids)


def test_of_two_rows_with_one_id_the_later_version_is_fetched_and_damage_is_named(
    store: DictionaryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [view_rows(0, 1, 2), view_rows(1, 2, 3)]
    # As a store that was killed between two steps has them.
    monkeypatch.setattr(store, "_read", lambda ids: [(part, row_checks(part)) for part in parts])
    fetched = {part.version: part.ids.to_pylist() for part in store.fetch([1, 2, 3])}
    assert fetched == {1: [2, 3], 0: [1]}
    checks = row_checks(parts[0])
    checks[1] ^= 1
    monkeypatch.setattr(store, "_read", lambda ids: [(parts[0], checks)])
    with pytest.raises(IntegrityError, match="id 2 in dictionary:one"):
        store.fetch([1, 2])


def test_versions_are_asked_with_as_many_queries_each(store: DictionaryStore) -> None:
    one, two = np.zeros((1, 2), np.float32), np.zeros((2, 2), np.float32)
    for queries in ({0: one, 1: two}, {1: np.zeros(2, np.float32)}):
        with pytest.raises(ShapeError):
            store.search(queries, 3)


DRAW = np.random.default_rng(0)
SCORED = DRAW.normal(size=(50, 5)).astype(np.float32)
ASKED = DRAW.normal(size=(3, 5)).astype(np.float32)


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_scores_and_the_best_are_those_of_float64(metric: str) -> None:
    vectors = SCORED.copy()
    vectors[7] = 0
    expected = scores_of(metric, ASKED, vectors).tolist()
    scores = scores_by(metric, ASKED.astype(float), vectors.astype(float))
    assert np.allclose(scores, expected, atol=1e-12)
    blocks = [Rows(2, pa.array(range(s, s + 10)), vectors[s : s + 10]) for s in range(0, 50, 10)]
    for k in (1, 7, 99):
        best = best_by(metric, ASKED, k, blocks, 2, pa.int64())
        for hits, row in zip(best, expected, strict=True):
            assert hits.ids.to_pylist() == sorted(range(50), key=lambda i: -row[i])[:k]
            assert set(hits.versions.tolist()) == {2}
            assert np.allclose(hits.scores, sorted(row, reverse=True)[:k], rtol=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_score_beyond_float32_is_infinite_without_a_warning() -> None:
    long = np.array([[3e38, 3e38], [1, 0]], np.float32)
    for metric, scores in (("ip", [np.inf, 3e38]), ("l2", [0, -np.inf]), ("cosine", [1, 0.5**0.5])):
        (hits,) = best_by(metric, long[:1], 2, [Rows(0, pa.array([1, 2]), long)], 0, pa.int64())
        assert hits.ids.to_pylist() == [1, 2]
        assert np.allclose(hits.scores, np.array(scores, np.float32))


ROWS, DIM = 4_000, 31
KINDS = ["snapshot", "lance", "pgvector"]


@pytest.fixture(autouse=True, scope="module")
def _an_index_of_few_rows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as during:
        during.setattr("evergram.stores.snapshot_store.INDEXED_FROM", 1_000)
        yield


def filled(kind: str, folder: Path, vectors: Floats) -> Store:
    store = STORES[kind](folder, "int64")
    store.load(Space(0, vectors.shape[1], "sha256:0"), [block(range(len(vectors)), vectors)])
    return store


def block(ids: Any, vectors: Floats) -> Rows:
    return Rows(0, pa.array(ids, pa.int64()), vectors)


def lengthened(vectors: Floats, queries: Floats) -> tuple[Floats, Floats]:
    """Rows as a lineage stores them, behind which are their squared lengths, and queries for them
    by inner product."""
    squares = (vectors.astype(np.float64) ** 2).sum(axis=1, keepdims=True) * NORM_SCALE
    stored = np.hstack([vectors, squares]).astype(np.float32)
    return stored, np.hstack([queries, np.zeros((len(queries), 1), np.float32)])


@dataclass(frozen=True)
class Indexed:
    kind: str
    folder: Path
    store: Store
    stored: Floats
    queries: Floats


@pytest.fixture(scope="module", params=KINDS)
def indexed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Indexed]:
    kind = request.param
    folder = tmp_path_factory.mktemp("indexed")
    base, queries = planted(ROWS, DIM)
    # Lengths differ as those of popular and of rare objects do, which misleads a graph's distances.
    spread = 1.0 if kind == "pgvector" else 0.3
    base *= np.exp(spread * np.random.default_rng(3).standard_normal((ROWS, 1))).astype(np.float32)
    stored, asked = lengthened(base, queries)
    with filled(kind, folder, stored) as store:
        assert store.build_index() == [0]
        yield Indexed(kind, folder, store, stored, asked)


def test_an_index_finds_nearly_all_of_the_best(indexed: Indexed) -> None:
    store, stored, queries = indexed.store, indexed.stored, indexed.queries
    if indexed.kind != "pgvector":
        pattern = {"snapshot": "*.faiss", "lance": "_indices/*/auxiliary.idx"}[indexed.kind]
        assert list(indexed.folder.rglob(pattern))
    # `recall` compares every score with the product of the vectors themselves.
    assert recall(store, 0, stored, queries, 10) >= 0.9
    assert recall(store, 0, stored, queries[:10], 300) >= 0.9
    assert recall(store, 0, stored, queries, 10, np.arange(0, ROWS, 7)) == 1.0
    assert len(store.search({0: queries[:1]}, ROWS + 5)[0]) == ROWS
    (rows,) = store.fetch(range(0, ROWS, 9))
    np.testing.assert_array_equal(rows.vectors, stored[rows.ids.to_numpy()])
    with STORES[indexed.kind](indexed.folder, "int64") as again:
        assert recall(again, 0, stored, queries[:10], 10) >= 0.9


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_every_metric_is_exact_in_scores_and_finds_nearly_all(
    indexed: Indexed, metric: str
) -> None:
    asked = indexed.queries[:, :DIM]
    truth = scores_of(metric, asked, indexed.stored[:, :DIM])
    search = {"ip": by_inner_product, "l2": by_distance, "cosine": by_cosine}[metric]
    maps = VersionMaps(cast(Any, SimpleNamespace(chain=Chain([], DIM))))
    field = Field(indexed.store, maps, version=0, target=0, dim=DIM, width=DIM + 1)
    found = 0
    for hits, row in zip(search([field], asked, 10, None), truth, strict=True):
        np.testing.assert_allclose(hits.scores, row[hits.ids.to_numpy()], rtol=1e-4)
        found += len(np.intersect1d(hits.ids.to_numpy(), np.argsort(-row)[:10]))
    assert found / (10 * len(asked)) >= 0.9


def test_rows_that_are_gone_or_new_are_as_in_the_oracle(indexed: Indexed) -> None:
    store, stored, queries = indexed.store, indexed.stored, indexed.queries
    oracle = DictionaryStore()
    oracle.load(Space(0, DIM + 1, "sha256:0"), [block(range(ROWS), stored)])
    gone = np.argsort(-(queries[0] @ stored.T))[:4]
    for each in (store, oracle):
        each.delete(gone[:3].tolist())
        each.upsert(block([gone[3], ROWS], np.stack([queries[0], queries[0] * 9])))
    hits, truth = (each.search({0: queries[:1]}, 3)[0] for each in (store, oracle))
    assert hits.ids.to_pylist() == truth.ids.to_pylist()
    same_hits(store, oracle, {0: queries[:1]}, ROWS)
    same_hits(store, oracle, {0: queries[:2]}, 10, ids=list(range(0, ROWS, 7)))
    store.delete([ROWS])
    store.upsert(block(gone, stored[gone]))
