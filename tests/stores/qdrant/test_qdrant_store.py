"""What is particular to Qdrant: its local mode, addresses, keys, and a server that is not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.planted import planted, recall
from tests.support.stores_together import work_together

from evergram.errors import DataError, FormatError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.qdrant.qdrant_store import QdrantStore
from evergram.stores.store import Rows, Space, StoreView


@pytest.fixture
def store(tmp_path: Path) -> Iterator[QdrantStore]:
    with QdrantStore.open(f"qdrant:{tmp_path}/qdrant#emb", "int64") as opened:
        opened.add_space(Space(0, 4, "sha256:zero"))
        yield opened


def rows(ids: range, version: int = 0, dim: int = 4, value: float = 1.0) -> Rows:
    vectors = np.full((len(ids), dim), value, dtype=np.float32)
    return Rows(version, pa.array(ids, pa.int64()), vectors)


@pytest.mark.long
def test_the_local_mode_searches_exactly(store: QdrantStore) -> None:
    vectors, queries = planted(1_000)
    store.add_space(Space(2, 32, "sha256:two"))
    store.upsert(Rows(2, pa.array(np.arange(1_000)), vectors))
    store.build_index()
    assert recall(store, 2, vectors, queries, 10) == 1.0
    assert recall(store, 2, vectors, queries, 10, np.arange(0, 1_000, 7)) == 1.0
    assert len(store.search({2: queries[:1]}, 2_000)[0]) == 1_000


def test_ids_of_any_text_and_any_number(tmp_path: Path) -> None:
    strange = ["it's", "", "a\nb", "nul\0x", "é", "1", " 1", "x" * 3000]
    with QdrantStore.open(f"qdrant:{tmp_path}#text", "string") as texts:
        texts.add_space(Space(0, 2, "sha256:zero"))
        texts.upsert(Rows(0, pa.array(strange), np.eye(8, 2, dtype=np.float32)))
        assert sorted(texts.fetch(strange)[0].ids.to_pylist()) == sorted(strange)
        texts.delete(strange[:2])
        assert texts.count() == {0: 6}
    with QdrantStore.open(f"qdrant:{tmp_path}#numbers", "int64") as numbers:
        numbers.add_space(Space(0, 2, "sha256:zero"))
        ends = [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]
        numbers.upsert(Rows(0, pa.array(ends, pa.int64()), np.ones((5, 2), dtype=np.float32)))
        assert sorted(numbers.fetch(ends)[0].ids.to_pylist()) == ends


def test_vectors_come_back_to_the_last_bit(store: QdrantStore) -> None:
    random = np.random.default_rng(0)
    vectors = (random.normal(size=(50, 4)) * 10.0 ** random.integers(-30, 30, (50, 4))).astype("f4")
    store.upsert(Rows(0, pa.array(range(50)), vectors))
    (found,) = store.fetch(range(50))
    np.testing.assert_array_equal(found.vectors, vectors[found.ids.to_numpy()])


def test_two_stores_in_one_folder_and_one_store_twice(store: QdrantStore, tmp_path: Path) -> None:
    folder = f"qdrant:{tmp_path}/qdrant"
    other = open_store(f"{folder}#query", create="string")
    again = open_store(store.address)
    store.upsert(rows(range(3)))
    assert again.count() == {0: 3}
    assert other.spaces() == {}
    again.close()
    again.close()
    other.close()
    assert store.count() == {0: 3}
    store.close()
    with open_store(store.address) as reopened:
        assert reopened.count() == {0: 3}
    with pytest.raises(StoreError, match="was closed"):
        store.count()


def test_another_process_is_told_that_the_folder_is_taken(store: QdrantStore) -> None:
    code = f"from evergram.stores.open_store import open_store; open_store({store.address!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "StoreError" in done.stderr
    assert "already accessed" in done.stderr


def test_more_than_20_000_rows_are_no_warning(
    store: QdrantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qdrant_client.common.client_warnings import SEEN_MESSAGES
    from qdrant_client.local.local_collection import LocalCollection

    monkeypatch.setattr(LocalCollection, "LARGE_DATA_THRESHOLD", 5)
    SEEN_MESSAGES.discard("large-local-collection")
    store.upsert(rows(range(10)))
    assert "large-local-collection" in SEEN_MESSAGES


def test_more_rows_than_one_request_takes(
    store: QdrantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.qdrant.qdrant_store.POINTS", 7)
    store.add_space(Space(1, 3, "sha256:one"))
    store.upsert(rows(range(40)))
    store.upsert(rows(range(10, 30), 1, 3))
    assert store.count() == {0: 20, 1: 20}
    assert sum(map(len, store.fetch(range(40)))) == 40
    store.delete(range(35))
    assert store.count() == {0: 5}


@pytest.mark.long
def test_threads_work_together(store: QdrantStore) -> None:
    work_together(store)


def test_a_later_format_is_refused(store: QdrantStore) -> None:
    name = store.address.rpartition("#")[2]
    store._ask("set_payload", name, {"format_version": 9}, [0], wait=True)
    with pytest.raises(FormatError, match="has format 9; this Evergram reads 1"):
        store.spaces()


def test_a_process_that_moves_rows_all_the_time_is_not_waited_for(
    store: QdrantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server, where another process may write however long this one reads."""
    store.add_space(Space(1, 3, "sha256:one"))
    store.upsert(rows(range(3)))
    monkeypatch.setattr(store, "_remote", True)
    looks = []

    def look(view: StoreView) -> dict[int, int]:
        looks.append(view)
        store.upsert(rows(range(3), len(looks) % 2, 4 - len(looks) % 2))
        return view.count()

    with pytest.raises(StoreError, match="moved to other versions by another process each of the"):
        store.read_consistently(look)
    assert len(looks) == 10


@pytest.mark.parametrize("exact", [False, True])
def test_a_server_is_asked_for_all_rows_where_its_graph_may_be_misled(
    store: QdrantStore, monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    store.upsert(rows(range(3)))
    monkeypatch.setattr(store, "_remote", True)
    asked: list[Any] = []
    ask = store._ask

    def watched(name: str, *values: Any, **named: Any) -> Any:
        if name == "query_batch_points":
            asked.extend(values[1])
            plain = [one.model_copy(update={"params": None}) for one in values[1]]
            values = (values[0], plain)  # the local mode warns of parameters
        return ask(name, *values, **named)

    monkeypatch.setattr(store, "_ask", watched)
    hits = store.search({0: np.ones((1, 4), np.float32)}, 2, exact=exact)[0]
    assert len(hits) == 2
    assert [request.params.exact for request in asked] == [exact]


def test_addresses(tmp_path: Path, store: QdrantStore) -> None:
    with pytest.raises(DataError, match="no store"):
        open_store(f"qdrant:{tmp_path}/nowhere#emb")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(DataError, match="no store"):
        open_store(f"qdrant:{tmp_path}/qdrant#other")
    for address in ("qdrant:emb", "qdrant:http://me:secret@host:6333#emb", "qdrant:http://h?k=1#e"):
        with pytest.raises(DataError, match="QDRANT_API_KEY") as caught:
            open_store(address)
        assert "secret" not in str(caught.value)
    with pytest.raises(DataError, match="cannot be the name"):
        open_store(f"qdrant:{tmp_path}#a/b", create="int64")
    with pytest.raises(DataError, match="ids of type int64, not string"):
        open_store(store.address, create="string")


WRITER = """
import sys
import numpy as np, pyarrow as pa
from evergram.stores.qdrant.qdrant_store import QdrantStore
from evergram.stores.store import Rows
with QdrantStore.open(sys.argv[1]) as store:
    for i in range(100_000):
        ids = np.arange(20) + 20 * (i % 50)
        store.upsert(Rows(i % 2, pa.array(ids), np.full((20, 4 - i % 2), i, dtype=np.float32)))
        print(i, flush=True)
"""


@pytest.mark.long
def test_no_acknowledged_row_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    address = f"qdrant:{tmp_path}/killed#emb"
    with QdrantStore.open(address, "int64") as store:
        store.add_space(Space(0, 4, "sha256:zero"))
        store.add_space(Space(1, 3, "sha256:one"))
    for pause in (0.1, 0.3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, address], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(pause)
        os.kill(writer.pid, signal.SIGKILL)
        last = int((first + writer.communicate()[0]).split("\n")[-2])
        with QdrantStore.open(address) as store:
            # Each row of the last 50 batches is as it was told, or already the next one's.
            for i in range(max(0, last - 49), last + 1):
                parts = store.fetch(np.arange(20) + 20 * (i % 50))
                assert sum(map(len, parts)) == 20
                for part in parts:
                    assert set(np.unique(part.vectors)) <= {i, last + 1}
            store.delete(range(1000))
            assert store.count() == {}


def test_collections_of_somebody_else_are_refused_and_stay(store: QdrantStore) -> None:
    """They were deleted: one of that name was taken for what a killed writer had left."""
    from qdrant_client import models

    shape = models.VectorParams(size=1, distance=models.Distance.DOT)
    for name in ("emb-v7", "mine"):
        store._ask("create_collection", name, vectors_config=shape)
        point = models.PointStruct(id=5, vector=[1.0], payload={"price": 3})
        store._ask("upsert", name, [point], wait=True)
    with pytest.raises(StoreError, match="a collection emb-v7 that is not of the store"):
        store.add_space(Space(7, 4, "sha256:seven"))
    with pytest.raises(StoreError, match="a collection mine that is not of the store"):
        QdrantStore.open(f"qdrant:{store._place}#mine", "int64")
    for name in ("emb-v7", "mine"):
        assert store._ask("count", name, exact=True).count == 1


def test_a_collection_that_is_no_record_is_refused(store: QdrantStore) -> None:
    with pytest.raises(StoreError, match="is a collection of something else, or damaged"):
        QdrantStore.open(f"qdrant:{store._place}#emb-v0")
