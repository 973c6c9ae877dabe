"""What is particular to LanceDB: indexes of codes, versions, processes, and tables of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import lancedb.index
import numpy as np
import pyarrow as pa
import pytest
from filelock import FileLock
from tests.support.lineages import DIMS, lineage_of, vectors_of
from tests.support.own_tables import listed, table_of
from tests.support.planted import planted, recall
from tests.support.store_pairs import constant

from evergram.errors import DataError, FormatError, IntegrityError, StoreError
from evergram.retrieval.reader import Reader
from evergram.stores.index_codes import IndexCodes
from evergram.stores.lance import lance_folder, lance_store
from evergram.stores.lance.lance_folder import errors_as_store_errors
from evergram.stores.lance.lance_store import LanceStore
from evergram.stores.open_store import open_store
from evergram.stores.store import Floats, Rows, Space


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LanceStore]:
    with LanceStore.open(f"lance:{tmp_path}/lance#emb", "int64") as opened:
        opened.add_space(Space(0, 4, "sha256:zero"))
        yield opened


@pytest.fixture
def own_database(tmp_path: Path) -> Any:
    return lancedb.connect(tmp_path / "lance")


def test_small_scores_keep_their_digits(store: LanceStore) -> None:
    tiny = np.array([[3e-7, 0, 0, 0], [2e-7, 0, 0, 0]], dtype=np.float32)
    store.upsert(Rows(0, pa.array([1, 2]), tiny))
    (hits,) = store.search({0: np.array([[1e-3, 0, 0, 0]], dtype=np.float32)}, 2)
    assert hits.ids.to_pylist() == [1, 2]
    np.testing.assert_allclose(hits.scores, [3e-10, 2e-10], rtol=1e-6)


def test_old_versions_of_a_table_do_not_pile_up(
    store: LanceStore, own_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lance_store, "KEPT", timedelta(milliseconds=1))
    monkeypatch.setattr(lance_store, "COMPACTED_AFTER", 8)
    for i in range(20):
        store.upsert(constant(range(2), value=i))
    assert len(own_database.open_table("emb-v0").list_versions()) < 12
    np.testing.assert_array_equal(store.fetch([0, 1])[0].vectors, 19)


def test_a_later_format_and_a_damaged_file_are_errors(store: LanceStore, tmp_path: Path) -> None:
    store.upsert(constant(range(5)))
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


def test_a_table_of_somebody_else_is_refused_and_stays(
    store: LanceStore, own_database: Any, tmp_path: Path
) -> None:
    """It was dropped: a table of that name was taken for what a killed writer had left."""
    mine = own_database.create_table("emb-v7", pa.table({"name": ["a"], "price": [1.0]}))
    with pytest.raises(StoreError, match="a table emb-v7"):
        store.add_space(Space(7, 4, "sha256:seven"))
    assert mine.count_rows() == 1
    assert list(store.spaces()) == [0]
    own_database.create_table("mine-v0", pa.table({"name": ["a"]}))
    with pytest.raises(StoreError, match="a table mine-v0"):
        LanceStore.open(f"lance:{tmp_path}/lance#mine", "int64")
    # One without rows that a killed writer left is made anew.
    own_database.create_table("emb-v3", schema=own_database.open_table("emb-v0").schema)
    store.add_space(Space(3, 6, "sha256:three"))
    store.upsert(constant(range(5), 3, 6))
    assert store.count() == {3: 5}


def test_one_process_writes_at_a_time(
    store: LanceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lance_folder, "WAIT", 0.01)
    with (
        FileLock(tmp_path / "lance/emb.lock"),
        pytest.raises(StoreError, match="Another process has been writing"),
    ):
        store.upsert(constant(range(2)))


class PanicException(BaseException):
    pass


def test_an_error_or_panic_of_lancedb_is_one_of_the_store_and_others_pass() -> None:
    for error in (ValueError("lost\n  a  file"), PanicException("lost a file")):
        with pytest.raises(StoreError, match="lost a file"), errors_as_store_errors("lance:x"):
            raise error
    for other in (DataError("mine"), KeyboardInterrupt(), GeneratorExit()):
        with pytest.raises(type(other)), errors_as_store_errors("lance:x"):
            raise other


def filled(folder: Path, vectors: Floats) -> LanceStore:
    store = LanceStore.open(f"lance:{folder}/lance#emb", "int64")
    rows = Rows(0, pa.array(range(len(vectors))), vectors)
    store.load(Space(0, vectors.shape[1], "sha256:0"), [rows])
    return store


def indexes(folder: Path) -> list[str]:
    table = lancedb.connect(folder / "lance").open_table("emb-v0")
    return [one.name for one in table.list_indices() if list(one.columns) == ["vector"]]


def test_the_second_index_of_a_killed_builder_is_used_and_goes(tmp_path: Path) -> None:
    vectors, queries = planted(1_500, 32)
    with filled(tmp_path, vectors) as store:
        store.build_index()
        config = lancedb.index.IvfSq(distance_type="dot", num_partitions=63)
        table = lancedb.connect(tmp_path / "lance").open_table("emb-v0")
        table.create_index("vector", config=config, name="vector_int8_3")
        assert len(indexes(tmp_path)) == 2
        assert recall(store, 0, vectors, queries, 10) >= 0.9
        store.build_index(IndexCodes("int8", 5))
        assert indexes(tmp_path) == ["vector_int8_5"]
        # A value that is larger than all from which bytes were made is cut off in the index.
        store.upsert(Rows(0, pa.array([1_500]), queries[:1] * 9))
        table.checkout_latest()  # type: ignore[no-untyped-call]
        table.optimize()
        assert store.search({0: queries[:1]}, 1)[0].ids.to_pylist() == [1_500]


def test_codes_that_lancedb_does_not_have_or_that_lose_coordinates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = planted(1_200, 12)[0]
    # Bytes have the same bounds in all coordinates, so one that is far larger loses the others.
    vectors[:, 0] *= 1e-4
    vectors[:, 1] += 1e5
    with filled(tmp_path, vectors[:999]) as store:
        # A small space has no index, so its length is no reason to refuse.
        assert store.build_index(IndexCodes("binary", 4)) == []
        store.upsert(Rows(0, pa.array(range(1_200)), vectors))
        with pytest.raises(DataError, match="int8 with oversample 4 finds"):
            store.build_index(IndexCodes("int8", 4))
        with pytest.raises(DataError, match="12 numbers"):
            store.build_index(IndexCodes("binary", 2))
        monkeypatch.delattr(lancedb.index, "IvfSq")
        with pytest.raises(DataError, match=r"pip install --upgrade lancedb"):
            store.build_index(IndexCodes("int8", 2))
        assert indexes(tmp_path) == []


QUERY = {0: np.ones((1, DIMS[0]), np.float32)}


@pytest.mark.parametrize("kind", [pa.float16(), pa.float64()])
def test_vectors_of_other_precisions(kind: pa.DataType, tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", 1, canaries=2)
    values = vectors_of(0).numpy()
    narrow = values.astype(kind.to_pandas_dtype())
    address = table_of("lance-table", tmp_path / "own", {"id": range(300)}, narrow, {"e0": kind})
    with closing(Reader.open(lineage, {"object": address})) as reader:
        assert reader.search(values[17], 1, 0, metric="l2")[0].ids.to_pylist() == [17]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_a_vector_that_is_not_finite_is_refused_wherever_it_is(tmp_path: Path, bad: float) -> None:
    values = vectors_of(0, 20).numpy().astype(np.float64)
    values[7, 2] = bad
    types = {"e0": pa.float64()}
    address = table_of("lance-table", tmp_path, {"id": range(20)}, values, types)
    with open_store(address) as store:
        for read in (
            lambda: store.fetch([7]),
            lambda: list(store.scan()),
            lambda: store.search(QUERY, 1),
        ):
            with pytest.raises(IntegrityError, match="not finite"):
                read()


def test_a_view_is_of_one_moment_and_the_next_sees_what_was_written(tmp_path: Path) -> None:
    address = table_of("lance-table", tmp_path, {"id": range(20)}, vectors_of(0, 20).numpy())
    with open_store(address) as store:

        def look(view: Any) -> int:
            before = view.count()[0]
            lancedb.connect(tmp_path).open_table("mine").delete("id >= 10")
            assert len(view.search(QUERY, 99)[0]) == before
            return int(before)

        assert store.read_consistently(look) == 20
        assert store.read_consistently(lambda view: view.count()) == {0: 10}


@pytest.mark.parametrize("writes", [0, 3])
def test_a_table_that_was_made_anew_is_compared_again(writes: int, tmp_path: Path) -> None:
    """It has the version numbers of the one before, or lower ones."""
    lineage, ids = lineage_of(tmp_path / "line", 1), pa.array(range(300))
    vectors = vectors_of(0).numpy()
    address = table_of("lance-table", tmp_path / "own", {"id": range(300)}, vectors)
    database = lancedb.connect(tmp_path / "own")
    for _ in range(writes):
        mine = database.open_table("mine")
        mine.add(pa.table({"id": pa.array([999]), "e0": listed(vectors[:1])}))
        mine.delete("id = 999")

    def made_anew(values: np.ndarray) -> None:
        database.drop_table("mine")
        database.create_table("mine", pa.table({"id": ids, "e0": listed(values)}))

    with closing(Reader.open(lineage, {"object": address})) as reader:
        before = reader.search(vectors[7], 3)[0].ids
        for _ in range(2):
            made_anew(-vectors)
            for read in (
                lambda: reader.search(vectors[7], 3),
                lambda: reader.embed([7]),
                lambda: list(reader.store().scan()),
            ):
                with pytest.raises(IntegrityError, match="200 of 200 vectors"):
                    read()
            made_anew(vectors)
            assert reader.search(vectors[7], 3)[0].ids.equals(before)
            assert reader.embed([7]).sources.tolist() == [0]
        database.drop_table("mine")
        for read in (lambda: reader.search(vectors[7], 3), lambda: reader.embed([7])):
            with pytest.raises((DataError, StoreError)):
                read()
