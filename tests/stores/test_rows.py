"""Rows and their checksums, ids, hits of several versions in one ranking, and slow scores."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.agreement import scores_of
from tests.support.dictionary_store import DictionaryStore

from evergram.errors import DataError, IntegrityError, ShapeError
from evergram.stores.adopted_scores import best_by, scores_by
from evergram.stores.index_codes import IndexCodes, tell_apart
from evergram.stores.rows import Hits, Rows, Space, merge_hits, row_checks


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


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(8, 40), st.floats(0, 3))
def test_a_row_that_is_left_out_is_none_of_the_best_or_worse_estimated_than_any(
    seed: int, k: int, size: int, noise: float
) -> None:
    draw = np.random.default_rng(seed)
    truth = draw.standard_normal(60).astype(np.float32)
    estimates = (truth + noise * draw.standard_normal(60)).astype(np.float32)
    order = np.argsort(-estimates, kind="stable")
    looked, left = order[:size], order[size:]
    largest = (truth - estimates)[looked].max(initial=0.0)
    kth = np.sort(truth[looked])[-k]
    # The best row that may be left out: with the smallest estimate, and as much better than it.
    hides_best = estimates[looked].min() + largest > kth
    assert tell_apart(truth[looked], estimates[looked], k) == (not hides_best)
    if not hides_best:
        hidden = left[(truth - estimates)[left] <= largest]
        assert (truth[hidden] <= kth + 1e-5).all()


def test_what_codes_cannot_be() -> None:
    for kind, oversample, named in (
        *(("int4", 4, "'int4'"), ("int8", 0, "is 0"), ("int8", 101, "is 101")),
        ("float32", 4, "is 4"),
    ):
        with pytest.raises(DataError, match=named):
            IndexCodes(kind, oversample)
