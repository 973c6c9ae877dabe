"""What is particular to LanceDB: text conditions, other processes, versions that pile up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from filelock import FileLock

from evergram.errors import DataError, FormatError, StoreError
from evergram.stores.lance import lance_folder
from evergram.stores.lance.lance_folder import (
    errors_as_store_errors,
    write_lock,
)
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


def test_small_scores_keep_their_digits(store: LanceStore) -> None:
    tiny = np.array([[3e-7, 0, 0, 0], [2e-7, 0, 0, 0]], dtype=np.float32)
    store.upsert(Rows(0, pa.array([1, 2]), tiny))
    (hits,) = store.search({0: np.array([[1e-3, 0, 0, 0]], dtype=np.float32)}, 2)
    assert hits.ids.to_pylist() == [1, 2]
    np.testing.assert_allclose(hits.scores, [3e-10, 2e-10], rtol=1e-6)


def test_old_versions_of_a_table_do_not_pile_up(
    store: LanceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.stores.lance.lance_store.KEPT", timedelta(milliseconds=1))
    for i in range(COMPACTED_AFTER + 20):
        store.upsert(rows(range(2), value=i))
    table = store._table(0)
    assert len(table.list_versions()) < COMPACTED_AFTER
    np.testing.assert_array_equal(store.fetch([0, 1])[0].vectors, COMPACTED_AFTER + 19)


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


def test_one_process_writes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance_folder, "WAIT", 0.01)
    with (
        FileLock(tmp_path / "emb.lock"),
        pytest.raises(StoreError, match="Another process has been writing lance:x#emb for 0 s"),
        write_lock(tmp_path, "emb", "lance:x#emb"),
    ):
        pass
    with (
        pytest.raises(StoreError, match="lance:x#emb cannot be written: No such file"),
        write_lock(tmp_path, "emb", "lance:x#emb"),
    ):
        raise FileNotFoundError(2, "No such file")


class PanicException(BaseException):
    pass


def test_an_error_or_panic_of_lancedb_is_one_of_the_store_and_others_pass() -> None:
    for error in (ValueError("lost\n  a  file"), PanicException("lost a file")):
        with pytest.raises(StoreError, match="lost a file"), errors_as_store_errors("lance:x"):
            raise error
    for other in (DataError("mine"), KeyboardInterrupt(), GeneratorExit()):
        with pytest.raises(type(other)) as caught, errors_as_store_errors("lance:x"):
            raise other
        assert caught.value is other
