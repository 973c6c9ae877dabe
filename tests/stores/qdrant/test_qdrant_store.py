"""What is particular to Qdrant: its local mode, its keys, and a server that is away."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from qdrant_client.local.local_collection import LocalCollection
from qdrant_client.local.qdrant_local import QdrantLocal
from tests.support.qdrant_answers import qdrant_answers

from evergram.errors import DataError, FormatError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.qdrant.qdrant_connection import QdrantConnection
from evergram.stores.qdrant.qdrant_points import points_of
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


def test_another_process_is_told_that_the_folder_is_taken(store: QdrantStore) -> None:
    code = f"from evergram.stores.open_store import open_store; open_store({store.address!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "StoreError" in done.stderr
    assert "already accessed" in done.stderr


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


def test_two_stores_share_a_folder_and_the_last_one_closes_it(tmp_path: Path) -> None:
    films, people = (open_store(f"qdrant:{tmp_path}/q#{n}", create="int64") for n in "ab")
    films.close()
    people.add_space(Space(0, 3, "sha256:zero"))
    with pytest.raises(StoreError, match="was closed"):
        films.spaces()
    people.close()
    people.close()
    with open_store(f"qdrant:{tmp_path}/q#b") as again:
        assert list(again.spaces()) == [0]


def test_advice_about_size_is_not_shown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (QdrantLocal, LocalCollection):
        monkeypatch.setattr(one, "LARGE_DATA_THRESHOLD", 1)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for _ in range(2):
            with open_store(f"qdrant:{tmp_path}/q#a", create="int64") as store:
                store.add_space(Space(0, 3, "sha256:zero"))
                store.upsert(Rows(0, pa.array([1, 2, 3]), np.eye(3, dtype=np.float32)))
                store.fetch([1, 2])
    assert not [w for w in shown if "Local mode" in str(w.message)]


def test_a_server_that_is_not_there_is_an_error_within_seconds() -> None:
    start = time.monotonic()
    with pytest.raises(StoreError, match=r"http://127\.0\.0\.1:9#emb cannot be reached"):
        open_store("qdrant:http://127.0.0.1:9#emb")
    assert time.monotonic() - start < 5


def test_every_point_keeps_its_id_for_ever() -> None:
    """They are stored, so a later Evergram must compute the same."""
    assert points_of([7, "7", "a"]) == [
        "f0b5b4b8-b5cb-5920-af1b-2cdcb054a491",
        "f0b5b4b8-b5cb-5920-af1b-2cdcb054a491",
        "e59b53f8-58a3-5574-b7b7-297c834c9cf7",
    ]
    assert len({UUID(point) for point in points_of(range(-100, 100))}) == 200


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_a_server_is_given_the_key_and_asked_again_after_a_cut(
    store: QdrantStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    monkeypatch.setenv("QDRANT_API_KEY", "hush")
    with qdrant_answers(tmp_path / "qdrant") as server:
        with open_store(f"qdrant:{server.url}#emb") as remote:
            assert "hush" not in remote.address
            server.cut = True
            assert remote.spaces() == {0: Space(0, 4, "sha256:zero")}
        assert (server.cut, server.keys) == (False, {"hush"})


def test_errors_of_the_client_are_one_sentence_and_our_own_pass(tmp_path: Path) -> None:
    connection = QdrantConnection(str(tmp_path / "q"), "qdrant:x#emb", create=True)
    with pytest.raises(StoreError, match="qdrant:x#emb cannot be reached"):
        connection.ask("count", "none")
    for error, kind in ((DataError("mine"), DataError), (TimeoutError(), StoreError)):
        with pytest.raises(kind), connection.errors_as_store_errors():
            raise error
    connection.close()
