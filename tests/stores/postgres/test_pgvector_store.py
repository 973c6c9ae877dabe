"""What is particular to PostgreSQL: it goes away, it asks for a password, it quotes names."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from tests.support.postgres_rows import NAMES, rows
from tests.support.postgres_server import PostgresServer
from tests.support.stores_together import work_together

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.postgres.pgvector_store import PgvectorStore
from evergram.stores.store import Rows, Space, StoreView


def test_names_and_ids_are_quoted(server: PostgresServer) -> None:
    name = "Select-From"
    ids = ["it's", 'say "x"', "back\\slash", "%s", "é", "", " ", "a" * 500]
    with PgvectorStore.open(server.address(name), "string") as store:
        store.add_space(Space(0, 2, "sha256:'\"%s"))
        store.upsert(Rows(0, pa.array(ids), np.eye(8, 2, dtype=np.float32)))
        assert store.spaces()[0].fingerprint == "sha256:'\"%s"
        assert sorted(store.fetch(ids)[0].ids.to_pylist()) == sorted(ids)
        store.delete(["it's"])
        assert store.count() == {0: 7}
        with open_store(store.address) as again:
            assert again.count() == {0: 7}
        with pytest.raises(DataError, match="NUL"):
            store.upsert(Rows(0, pa.array(["a\0b"]), np.ones((1, 2), dtype=np.float32)))


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(DataError, match="cannot be the name"):
        open_store('postgresql://ann@db/vectors#a"b')


def test_a_changed_row_is_noticed(server: PostgresServer, store: PgvectorStore) -> None:
    store.upsert(rows(range(3)))
    name = store.address.rpartition("#")[2]
    server.sql(f"update {name}_vectors set vector = '[1,1,1,2]' where id = 1")
    assert len(store.fetch([0, 2])[0]) == 2
    with pytest.raises(IntegrityError, match="id 1 "):
        store.fetch([0, 1])


def test_an_id_is_in_one_space_whoever_writes_at_once(store: PgvectorStore) -> None:
    store.add_space(Space(1, 3, "sha256:one"))

    def write(version: int) -> None:
        for _ in range(20):
            store.upsert(rows(range(50), version, 4 - version))

    threads = [threading.Thread(target=write, args=(i % 2,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(store.count().values()) == 50


def test_more_rows_than_one_request_takes(
    store: PgvectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.postgres.pgvector_store.WRITTEN_AT_ONCE", 7)
    store.add_space(Space(1, 3, "sha256:one"))
    store.upsert(rows(range(40)))
    store.upsert(rows(range(10, 30), 1, 3))
    assert store.count() == {0: 20, 1: 20}
    assert sum(map(len, store.fetch(range(40)))) == 40
    store.delete(range(35))
    assert store.count() == {0: 5}


def test_threads_work_together(store: PgvectorStore) -> None:
    work_together(store)


@pytest.mark.long
def test_no_acknowledged_row_is_lost_when_the_server_crashes(
    server: PostgresServer, store: PgvectorStore
) -> None:
    acknowledged: list[int] = []
    failed: list[StoreError] = []

    def write() -> None:
        try:
            for i in itertools.count():
                store.upsert(rows(range(i * 200, i * 200 + 200), value=i))
                acknowledged.append(i)
        except StoreError as error:
            failed.append(error)

    # Batches that were acknowledged before the server crashes, in the middle of a later one.
    for batches in (1, 4, 9):
        acknowledged.clear()
        thread = threading.Thread(target=write)
        thread.start()
        while len(acknowledged) < batches:
            assert thread.is_alive()
            time.sleep(0.001)
        server.crash()
        thread.join()
        server.start()
        assert acknowledged
        for i in acknowledged:
            (found,) = store.fetch(range(i * 200, i * 200 + 200))
            assert len(found) == 200
            assert (found.vectors == i).all()
        # A batch is one transaction: what was not acknowledged is there whole or not at all.
        assert store.count()[0] % 200 == 0
    assert len(failed) == 3


def test_a_reader_without_the_right_to_write_reads_consistently(
    server: PostgresServer, store: PgvectorStore
) -> None:
    store.upsert(rows(range(3)))
    name = store.address.rpartition("#")[2]
    server.sql("create role onlooker login")
    for table in ("vectors", "spaces", "side"):
        server.sql(f"grant select on {name}_{table} to onlooker")
    address = store.address.replace("postgres@", "onlooker@")
    query = np.ones((1, 4), dtype=np.float32)
    with open_store(address) as reader:
        hits = reader.read_consistently(lambda view: view.search({0: query}, 5))
        assert len(hits[0]) == 3
        with pytest.raises(StoreError, match="permission denied"):
            reader.take_side("query")
    assert store.side is None


def test_a_view_that_fails_gives_its_connection_back(store: PgvectorStore) -> None:
    store.upsert(rows(range(3)))

    def fail(view: StoreView) -> None:
        view.count()
        raise DataError("not this time")

    for _ in range(20):
        with pytest.raises(DataError, match="not this time"):
            store.read_consistently(fail)
    assert store.read_consistently(lambda view: view.count()) == {0: 3}


def test_a_view_of_a_server_that_was_restarted_begins_again(
    server: PostgresServer, store: PgvectorStore
) -> None:
    store.upsert(rows(range(3)))
    views = []

    def look(view: StoreView) -> dict[int, int]:
        views.append(view)
        if len(views) == 1:
            server.stop()
            server.start()
        return view.count()

    assert store.read_consistently(look) == {0: 3}
    assert len(views) == 2


def test_a_closed_store_says_so(server: PostgresServer) -> None:
    store = PgvectorStore.open(server.address(next(NAMES)), "int64")
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.spaces()
