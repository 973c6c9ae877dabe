"""The file of an SQLite store: what is no such file, who writes, and what it needs."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.support.optional import need
from tests.support.sqlite_files import rows

from evergram.errors import DataError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.sqlite.sqlite_store import SqliteStore
from evergram.stores.store import Space

need("apsw")
need("sqlite_vec")


def test_a_file_of_something_else_is_refused_and_stays(tmp_path: Path) -> None:
    text = "films, and what they cost\n" * 100
    (tmp_path / "films.csv").write_text(text)
    for create in (None, "int64"):
        with pytest.raises(StoreError, match="not a database"):
            open_store(f"sqlite:{tmp_path}/films.csv#emb", create=create)
    assert (tmp_path / "films.csv").read_text() == text
    with pytest.raises(StoreError, match="cannot be read or written"):
        open_store(f"sqlite:{tmp_path}#emb", create="int64")


def test_a_full_disk_undoes_the_whole_write(store: SqliteStore) -> None:
    store.upsert(rows(range(10)))
    with store._file.writing() as connection:
        connection.execute("pragma max_page_count = 20")
    with pytest.raises(StoreError, match=r"full.*disk has room"):
        store.upsert(rows(range(5, 20_000), value=2.0))
    np.testing.assert_array_equal(store.fetch(range(10))[0].vectors, 1.0)
    assert store.count() == {0: 10}


def test_another_writer_is_waited_for_and_then_an_error(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.sqlite.sqlite_file.WAIT", 0.05)
    late = pytest.raises(StoreError, match="Another process has been writing")
    with open_store(store.address) as other, store._file.writing(), late:
        other.upsert(rows(range(3)))
    assert store.count() == {}


@pytest.mark.parametrize("module", ["apsw", "sqlite_vec"])
def test_without_its_clients_the_error_says_what_to_install(
    module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=r"pip install 'evergram\[sqlite\]'"):
        open_store(f"sqlite:{tmp_path}/s.db#emb", create="int64")
    assert not (tmp_path / "s.db").exists()


def test_an_sqlite_that_loads_no_extensions_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import apsw

    monkeypatch.setattr(apsw, "Connection", object)
    with pytest.raises(DataError, match="built without loadable extensions"):
        open_store(f"sqlite:{tmp_path}/s.db#emb", create="int64")


def test_a_closed_store_says_so_and_leaves_one_file(store: SqliteStore, tmp_path: Path) -> None:
    store.upsert(rows(range(3)))
    store.close()
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.fetch([1])
    assert [path.name for path in tmp_path.iterdir()] == ["films.db"]


def test_a_store_that_many_make_at_once_is_one(store: SqliteStore) -> None:
    """A new file turns to its log ahead of all others, and SQLite does not wait there by itself."""
    folder = store._path.parent
    for i in range(5):
        address = f"sqlite:{folder}/new{i}/s.db#emb"

        def make(number: int, address: str = address) -> dict[int, int]:
            with open_store(address, create="int64") as made:
                made.add_space(Space(0, 4, "sha256:zero"))
                made.upsert(rows(range(number, number + 1)))
                return made.count()

        with ThreadPoolExecutor(8) as pool:
            assert max(count[0] for count in pool.map(make, range(8))) == 8
