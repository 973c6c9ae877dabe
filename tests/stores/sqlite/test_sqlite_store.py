"""What is particular to SQLite: exactness by sqlite-vec's distances, damaged rows, pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.killed_writers import kill_writers
from tests.support.optional import need
from tests.support.sqlite_files import edited, rows
from tests.support.stores_together import work_together

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.sqlite.sqlite_store import SqliteStore
from evergram.stores.store import Floats, Rows, Space, StoreView

need("apsw")
need("sqlite_vec")


def best(vectors: Floats, query: Floats, k: int) -> list[float]:
    """Return the largest inner products, by a loop in float64."""
    products = [float(np.dot(v.astype(np.float64), query.astype(np.float64))) for v in vectors]
    return sorted(products, reverse=True)[:k]


# Lengths that overflow or vanish where a float32 is squared, and no length at all.
LENGTHS = [0.0, 1e-37, 1e-25, 1e-14, 1e-3, 1.0, 1e3, 1e14, 1e20, 1e30]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=60),
    st.sampled_from([0.0, 1e-20, 1.0, 1e6]),
    st.integers(1, 25),
    st.integers(0, 10_000),
)
def test_the_best_are_found_whatever_their_lengths(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[float], size: float, k: int, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    vectors = chance.normal(size=(len(lengths), 6)) * np.array(lengths)[:, None]
    query = (chance.normal(size=6) * size).astype(np.float32)
    written = Rows(0, pa.array(range(len(lengths))), vectors.astype(np.float32))
    with SqliteStore.open(f"sqlite:{tmp_path_factory.mktemp('s')}/s.db#emb", "int64") as store:
        store.add_space(Space(0, 6, "sha256:zero"))
        store.upsert(written)
        (hits,) = store.search({0: query[None]}, k)
    truth = best(written.vectors, query, k)
    largest = np.abs(query).max() * np.abs(written.vectors).max() * 1e-6
    assert len(hits) == len(truth)
    np.testing.assert_allclose(hits.scores, truth, rtol=1e-5, atol=max(largest, 1e-44))


def test_rows_that_rounding_cannot_tell_apart_are_scored_by_themselves(store: SqliteStore) -> None:
    """A thousand rows nearly alike, of which sqlite-vec's float32 distances make ties."""
    vectors = np.ones((1000, 4), dtype=np.float32)
    steps = np.float32(2.0**-20) * np.random.default_rng(0).permutation(1000).astype(np.float32)
    vectors[:, 0] += steps / 64
    store.upsert(Rows(0, pa.array(range(1000)), vectors))
    (hits,) = store.search({0: np.array([[1, -0.25, -0.25, -0.25]], dtype=np.float32)}, 3)
    truth = best(vectors, np.array([1, -0.25, -0.25, -0.25], dtype=np.float32), 3)
    np.testing.assert_allclose(hits.scores, truth, rtol=0, atol=2e-7)


def test_another_opening_sees_every_write_at_once(store: SqliteStore) -> None:
    with open_store(store.address) as other:
        for i in range(3):
            store.upsert(rows(range(i, i + 1)))
            assert other.count() == {0: i + 1}
        other.add_space(Space(1, 3, "sha256:one"))
        other.upsert(rows(range(3), 1, 3))
        assert store.count() == {1: 3}


def test_a_scan_goes_page_by_page_and_meets_writers(tmp_path: Path) -> None:
    with SqliteStore.open(f"sqlite:{tmp_path}/s.db#emb", "string") as store:
        store.add_space(Space(0, 4, "sha256:zero"))
        vectors = np.ones((25, 4), dtype=np.float32)
        store.upsert(Rows(0, pa.array([f"t{i}" for i in range(25)]), vectors))
        seen: list[str] = []
        for block in store.scan(0, 10):
            assert len(block) <= 10
            seen += block.ids.to_pylist()
            store.delete(["t24"])
        assert seen == [f"t{i}" for i in range(24)]


def test_addresses(tmp_path: Path, store: SqliteStore) -> None:
    with pytest.raises(DataError, match="no store"):
        open_store(f"sqlite:{tmp_path}/nowhere/s.db#emb")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(DataError, match="no store"):
        open_store(store.address.replace("#emb", "#other"))
    with pytest.raises(DataError, match="sqlite:FILE#NAME"):
        open_store("sqlite:films.db")
    with pytest.raises(DataError, match="SQLite keeps names such as 'SQLite_x' for itself"):
        open_store("sqlite:films.db#SQLite_x", create="int64")
    with pytest.raises(DataError, match="cannot be the name"):
        open_store(f"sqlite:{tmp_path}/s.db#../x", create="int64")
    with pytest.raises(DataError, match="ids of type int64, not string"):
        open_store(store.address, create="string")
    with open_store(store.address) as again:
        assert again.spaces() == store.spaces()


@pytest.mark.parametrize(
    "change",
    [
        "vector = zeroblob(16)",
        "vector = zeroblob(12)",
        "vector = zeroblob(3)",
        "vector = null",
        "vector = 7",
        "checksum = checksum + 1",
        "checksum = 'a'",
        "id = 99",
    ],
)
def test_a_row_that_was_changed_never_comes_out(store: SqliteStore, change: str) -> None:
    store.upsert(rows(range(3)))
    edited(store._path, f"update emb_v0 set {change} where id = 1")
    query = np.ones((1, 4), dtype=np.float32)
    for ask in (
        lambda: store.fetch([1, 99]),
        lambda: list(store.scan()),
        lambda: store.search({0: query}, 3),
        lambda: store.search({0: query}, 3, ids=[1, 99]),
    ):
        with pytest.raises((StoreError, IntegrityError)):
            ask()
    assert len(store.fetch([0, 2])[0]) == 2


def test_errors_of_the_reader_are_its_own(store: SqliteStore) -> None:
    def look(_: StoreView) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        store.read_consistently(look)
    store.upsert(rows(range(3)))
    assert store.count() == {0: 3}


@pytest.mark.long
def test_threads_work_together(store: SqliteStore) -> None:
    work_together(store)


@pytest.mark.long
def test_no_acknowledged_row_is_lost_when_the_writer_is_killed(store: SqliteStore) -> None:
    kill_writers(store)
