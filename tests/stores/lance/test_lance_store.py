"""What is particular to LanceDB: text conditions, other processes, versions that pile up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.killed_writers import kill_writers
from tests.support.planted import planted, recall
from tests.support.stores_together import work_together

from evergram.errors import DataError, FormatError, StoreError
from evergram.stores.lance.lance_store import COMPACTED_AFTER, LanceStore
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows, Space


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LanceStore]:
    with LanceStore.open(f"lance:{tmp_path}/lance#emb", "int64") as opened:
        opened.add_space(Space(0, 4, "sha256:zero"))
        yield opened


def rows(ids: range, version: int = 0, dim: int = 4, value: float = 1.0) -> Rows:
    vectors = np.full((len(ids), dim), value, dtype=np.float32)
    return Rows(version, pa.array(ids, pa.int64()), vectors)


def test_the_index_finds_nearly_all_of_the_best(store: LanceStore) -> None:
    vectors, queries = planted()
    store.add_space(Space(2, 32, "sha256:two"))
    store.upsert(Rows(2, pa.array(np.arange(len(vectors))), vectors))
    store.build_index()
    assert "IvfFlat" in str(store._table(2).list_indices())
    assert recall(store, 2, vectors, queries, 10) >= 0.9
    assert recall(store, 2, vectors, queries, 300) >= 0.9
    assert len(store.search({2: queries[:1]}, 6000)[0]) == len(vectors)
    few = np.arange(0, len(vectors), 7)
    assert recall(store, 2, vectors, queries, 10, few) == 1.0


def test_rows_that_came_after_the_index_are_found(store: LanceStore) -> None:
    vectors, queries = planted()
    store.add_space(Space(2, 32, "sha256:two"))
    store.upsert(Rows(2, pa.array(np.arange(4000)), vectors[:4000]))
    store.build_index()
    store.upsert(Rows(2, pa.array(np.arange(3900, 5000)), vectors[3900:]))
    assert recall(store, 2, vectors, queries, 10) >= 0.9


def test_ids_of_any_text_and_any_number(tmp_path: Path) -> None:
    strange = ["it's", "''", 'say "x"', "back\\slash'", "--", "a\nb", "nul\0x", "", "%", "é'"]
    with LanceStore.open(f"lance:{tmp_path}#text", "string") as texts:
        texts.add_space(Space(0, 2, "sha256:zero"))
        texts.add_space(Space(1, 2, "sha256:one"))

        # One store for all: an example takes the ids that it wrote away again.
        @settings(max_examples=15, deadline=None)
        @example(strange)
        @given(st.lists(st.text(max_size=8), min_size=1, max_size=8, unique=True))
        def check(ids: list[str]) -> None:
            for version in (0, 1):
                vectors = np.arange(2 * len(ids), dtype=np.float32).reshape(-1, 2)
                texts.upsert(Rows(version, pa.array(ids), vectors))
                (rows,) = texts.fetch(ids)
                assert rows.version == version
                assert sorted(rows.ids.to_pylist()) == sorted(ids)
            texts.delete(ids)
            assert texts.count() == {}

        check()
    with LanceStore.open(f"lance:{tmp_path}#numbers", "int64") as numbers:
        numbers.add_space(Space(0, 2, "sha256:zero"))
        ends = [-(2**63), -(2**63) + 1, -1, 0, 2**53 + 1, 2**63 - 1]
        numbers.upsert(Rows(0, pa.array(ends, pa.int64()), np.ones((6, 2), dtype=np.float32)))
        assert sorted(numbers.fetch(ends)[0].ids.to_pylist()) == ends
        numbers.delete(ends[:1])
        assert sorted(numbers.fetch(ends)[0].ids.to_pylist()) == ends[1:]


def test_small_scores_keep_their_digits(store: LanceStore) -> None:
    tiny = np.array([[3e-7, 0, 0, 0], [2e-7, 0, 0, 0]], dtype=np.float32)
    store.upsert(Rows(0, pa.array([1, 2]), tiny))
    (hits,) = store.search({0: np.array([[1e-3, 0, 0, 0]], dtype=np.float32)}, 2)
    assert hits.ids.to_pylist() == [1, 2]
    np.testing.assert_allclose(hits.scores, [3e-10, 2e-10], rtol=1e-6)


def test_another_opening_sees_every_write_at_once(store: LanceStore) -> None:
    other = open_store(store.address)
    for i in range(3):
        store.upsert(rows(range(i, i + 1)))
        assert other.count() == {0: i + 1}
        assert len(other.fetch([i])) == 1
    other.add_space(Space(1, 3, "sha256:one"))
    other.upsert(rows(range(3), 1, 3))
    assert store.count() == {1: 3}


def test_old_versions_of_a_table_do_not_pile_up(
    store: LanceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.lance.lance_store.KEPT", timedelta(milliseconds=1))
    for i in range(COMPACTED_AFTER + 20):
        store.upsert(rows(range(2), value=i))
    table = store._table(0)
    assert len(table.list_versions()) < COMPACTED_AFTER
    np.testing.assert_array_equal(store.fetch([0, 1])[0].vectors, COMPACTED_AFTER + 19)


def test_more_rows_than_one_request_takes(
    store: LanceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.lance.lance_rows.LOOKED_UP", 7)
    store.add_space(Space(1, 3, "sha256:one"))
    store.upsert(rows(range(40)))
    store.upsert(rows(range(10, 30), 1, 3))
    assert store.count() == {0: 20, 1: 20}
    assert sum(map(len, store.fetch(range(40)))) == 40
    store.delete(range(35))
    assert store.count() == {0: 5}


@pytest.mark.long
def test_threads_work_together(store: LanceStore) -> None:
    work_together(store)


def test_addresses(tmp_path: Path, store: LanceStore) -> None:
    with pytest.raises(DataError, match="no store"):
        open_store(f"lance:{tmp_path}/nowhere#emb")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(DataError, match="lance:DIR#NAME"):
        open_store("lance:emb")
    with pytest.raises(DataError, match="cannot be the name"):
        open_store(f"lance:{tmp_path}#../x", create="int64")
    with pytest.raises(DataError, match="ids of type int64, not string"):
        open_store(store.address, create="string")
    assert open_store(store.address).spaces() == store.spaces()


def test_a_later_format_and_a_damaged_file_are_errors(store: LanceStore, tmp_path: Path) -> None:
    store.upsert(rows(range(5)))
    meta = tmp_path / "lance/emb.json"
    text = meta.read_text()
    meta.write_text(text.replace('"format_version": 1', '"format_version": 9'))
    with pytest.raises(FormatError, match="format 9"):
        open_store(store.address)
    meta.write_text(text[:-5])
    with pytest.raises(StoreError, match="cannot be read"):
        open_store(store.address)
    meta.write_text(text)
    for file in (tmp_path / "lance/emb-v0.lance/data").iterdir():
        file.write_bytes(file.read_bytes()[:-8] + b"\0" * 8)
    with pytest.raises(StoreError, match="cannot be read"):
        open_store(store.address).fetch([1])


def test_without_lancedb_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(DataError, match=r"pip install 'evergram\[lance\]'"):
        open_store(f"lance:{tmp_path}#emb", create="int64")


def test_a_closed_store_says_so(store: LanceStore) -> None:
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.fetch([1])


@pytest.mark.long
def test_no_acknowledged_row_is_lost_when_the_writer_is_killed(store: LanceStore) -> None:
    kill_writers(store)


def test_a_table_of_somebody_else_is_refused_and_stays(store: LanceStore) -> None:
    """It was dropped: a table of that name was taken for what a killed writer had left."""
    mine = store._database.create_table("emb-v7", pa.table({"name": ["a"], "price": [1.0]}))
    with pytest.raises(StoreError, match=r"a table emb-v7 that .* did not write; give another"):
        store.add_space(Space(7, 4, "sha256:seven"))
    assert mine.count_rows() == 1
    assert list(store.spaces()) == [0]
    store._database.create_table("mine-v0", pa.table({"name": ["a"]}))
    with pytest.raises(StoreError, match="a table mine-v0"):
        LanceStore.open(f"lance:{store._folder}#mine", "int64")


def test_an_empty_table_that_a_killed_writer_left_is_made_anew(store: LanceStore) -> None:
    schema = store._table(0).schema
    store._database.create_table("emb-v3", schema=schema)
    store.add_space(Space(3, 6, "sha256:three"))
    store.upsert(rows(range(5), 3, 6))
    assert store.count() == {3: 5}
