"""What is particular to LanceDB: indexes of codes, versions, processes, and tables of one's own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lancedb
import lancedb.index
import numpy as np
import pyarrow as pa
import pytest
from filelock import FileLock
from tests.support.agreement import same_hits
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import DIMS, lineage_of, vectors_of
from tests.support.planted import planted, recall

from evergram.compatibility.chain import Chain
from evergram.errors import DataError, FormatError, IntegrityError, StoreError
from evergram.retrieval.metric_search import Field, by_cosine, by_distance, by_inner_product
from evergram.retrieval.reader import Reader
from evergram.retrieval.version_maps import NORM_SCALE, VersionMaps
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.lance import lance_folder, lance_index
from evergram.stores.lance.lance_folder import errors_as_store_errors, write_lock
from evergram.stores.lance.lance_index import FORMS, codes_of
from evergram.stores.lance.lance_store import COMPACTED_AFTER, LanceStore
from evergram.stores.lance.table_state import TableState, read_state
from evergram.stores.open_store import open_store
from evergram.stores.store import Floats, Rows, Space


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LanceStore]:
    with LanceStore.open(f"lance:{tmp_path}/lance#emb", "int64") as opened:
        opened.add_space(Space(0, 4, "sha256:zero"))
        yield opened


def made_rows(ids: range, version: int = 0, dim: int = 4, value: float = 1.0) -> Rows:
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
        store.upsert(made_rows(range(2), value=i))
    table = store._table(0)
    assert len(table.list_versions()) < COMPACTED_AFTER
    np.testing.assert_array_equal(store.fetch([0, 1])[0].vectors, COMPACTED_AFTER + 19)


def test_a_later_format_and_a_damaged_file_are_errors(store: LanceStore, tmp_path: Path) -> None:
    store.upsert(made_rows(range(5)))
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
    store.upsert(made_rows(range(5), 3, 6))
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


ROWS, DIM = 4_000, 31

KINDS = {"float32": "IvfFlat", "int8": "IvfSq", "binary": "IvfRq"}

# Lists of whole vectors take 4 bytes a coordinate, and each row's place and list are beside it.
MOST_BYTES = {"float32": 8 * DIM, "int8": DIM + 1 + 8, "binary": (DIM + 1) / 8 + 20}


def filled(folder: Path, vectors: Floats) -> LanceStore:
    store = LanceStore.open(f"lance:{folder}/lance#emb", "int64")
    store.load(Space(0, vectors.shape[1], "sha256:0"), [block(range(len(vectors)), vectors)])
    return store


def block(ids: Any, vectors: Floats) -> Rows:
    return Rows(0, pa.array(ids, pa.int64()), vectors)


def indexes(store: LanceStore) -> list[Any]:
    return [one for one in store._table(0).list_indices() if list(one.columns) == ["vector"]]


@dataclass(frozen=True)
class Indexed:
    """Rows as a lineage stores them, behind which are their squared lengths."""

    folder: Path
    store: LanceStore
    codes: IndexCodes
    stored: Floats
    queries: Floats


@pytest.fixture(scope="module", params=[FLOAT32, IndexCodes("int8", 4), IndexCodes("binary", 16)])
def indexed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Indexed]:
    folder = tmp_path_factory.mktemp("indexed")
    base, queries = planted(ROWS, DIM)
    base *= np.exp(0.3 * np.random.default_rng(3).standard_normal((ROWS, 1))).astype(np.float32)
    squares = (base.astype(np.float64) ** 2).sum(axis=1, keepdims=True) * NORM_SCALE
    stored = np.hstack([base, squares]).astype(np.float32)
    with filled(folder, stored) as store:
        assert store.build_index(request.param) == [0]
        yield Indexed(folder, store, request.param, stored, queries)


def test_few_bytes_find_nearly_all_of_the_best(indexed: Indexed) -> None:
    store, codes, stored = indexed.store, indexed.codes, indexed.stored
    queries = np.hstack([indexed.queries, np.zeros((len(indexed.queries), 1), np.float32)])
    (index,) = indexes(store)
    assert index.index_type == KINDS[codes.kind]
    assert index.size_bytes / ROWS < MOST_BYTES[codes.kind]
    assert recall(store, 0, stored, queries, 10) >= 0.9
    assert recall(store, 0, stored, queries, 300) >= 0.9
    assert recall(store, 0, stored, queries, 10, np.arange(0, ROWS, 7)) == 1.0
    assert len(store.search({0: queries[:1]}, ROWS + 5)[0]) == ROWS
    # Scores are those of the vectors, and vectors as they were written, to the last bit.
    truth = queries.astype(np.float64) @ stored.T.astype(np.float64)
    for number, hits in enumerate(store.search({0: queries}, 20)):
        chosen = hits.ids.to_numpy()
        bound = (DIM + 1) * 2.0**-23 * np.abs(queries[number]) @ np.abs(stored[chosen].T)
        assert (np.abs(hits.scores - truth[number, chosen]) <= bound).all()
    (rows,) = store.fetch(range(0, ROWS, 9))
    np.testing.assert_array_equal(rows.vectors, stored[rows.ids.to_numpy()])
    with open_store(store.address) as again:
        assert isinstance(again, LanceStore)
        assert codes_of(again._table(0)) == codes
        assert recall(again, 0, stored, queries, 10) >= 0.9


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_every_metric_is_exact_in_scores_and_finds_nearly_all(
    indexed: Indexed, metric: str
) -> None:
    whole = indexed.stored[:, :DIM].astype(np.float64)
    asked = indexed.queries.astype(np.float64)
    squares = (whole**2).sum(axis=1)
    products, lengths = asked @ whole.T, np.linalg.norm(asked, axis=1)[:, None]
    truth = {
        "ip": products,
        "l2": 2 * products - squares - lengths**2,
        "cosine": products / lengths / np.sqrt(squares),
    }[metric]
    search = {"ip": by_inner_product, "l2": by_distance, "cosine": by_cosine}[metric]
    maps = VersionMaps(cast(Any, SimpleNamespace(chain=Chain([], DIM))))
    field = Field(indexed.store, maps, version=0, target=0, dim=DIM, width=DIM + 1)
    found = 0
    for hits, row in zip(search([field], indexed.queries, 10, None), truth, strict=True):
        np.testing.assert_allclose(hits.scores, row[hits.ids.to_numpy()], rtol=1e-4)
        found += len(np.intersect1d(hits.ids.to_numpy(), np.argsort(-row)[:10]))
    assert found / (10 * len(asked)) >= 0.9


def test_rows_that_are_gone_or_new_are_as_in_the_oracle(indexed: Indexed, tmp_path: Path) -> None:
    stored = indexed.stored
    queries = np.hstack([indexed.queries[:2], np.zeros((2, 1), np.float32)])
    oracle = DictionaryStore()
    oracle.load(Space(0, DIM + 1, "sha256:0"), [block(range(ROWS), stored)])
    shutil.copytree(indexed.folder, tmp_path / "copy")
    with LanceStore.open(f"lance:{tmp_path}/copy/lance#emb", "int64") as store:
        gone = np.argsort(-(queries[0] @ stored.T))[:5].tolist()
        for each in (store, oracle):
            each.delete(gone[:3])
            each.upsert(block([gone[3], ROWS], np.stack([queries[0], queries[0] * 9])))
        for _ in range(2):
            hits, truth = (each.search({0: queries[:1]}, 3)[0] for each in (store, oracle))
            assert hits.ids.to_pylist() == truth.ids.to_pylist()
            assert not set(gone[:3]) & set(hits.ids.to_pylist())
            same_hits(store, oracle, {0: queries}, ROWS)
            # Once LanceDB has added the rows to the index: a value that is larger than all from
            # which bytes were made is cut off there.
            store._table(0).optimize()
            assert store._table(0).index_stats(indexes(store)[0].name).num_unindexed_rows == 0


def test_other_codes_replace_the_index_also_that_of_a_killed_builder(tmp_path: Path) -> None:
    vectors, queries = planted(1_500, 32)
    with filled(tmp_path, vectors) as store, open_store(store.address) as other:
        assert codes_of(store._table(0)) == FLOAT32
        for codes in (FLOAT32, IndexCodes("binary", 16), IndexCodes("int8", 4), FLOAT32):
            assert store.build_index(codes) == [0]
            assert [one.index_type for one in indexes(store)] == [KINDS[codes.kind]]
            # Another process sees it, and a view of one moment keeps it.
            assert isinstance(other, LanceStore)
            assert codes_of(other._table(0)) == codes
            assert recall(other, 0, vectors, queries, 10) >= 0.9
            best = store.read_consistently(lambda view: view.search({0: queries[:1]}, 3))
            assert best[0].ids.to_pylist() == store.search({0: queries[:1]}, 3)[0].ids.to_pylist()
        config = lancedb.index.IvfSq(distance_type="dot", num_partitions=63)
        store._table(0).create_index("vector", config=config, name="vector_int8_3")
        assert len(indexes(store)) == 2
        assert recall(store, 0, vectors, queries, 10) >= 0.9
        store.build_index(IndexCodes("int8", 5))
        assert [one.name for one in indexes(store)] == ["vector_int8_5"]


def test_a_query_that_codes_do_not_answer_is_compared_with_all_rows(tmp_path: Path) -> None:
    """A squared length behind a vector decides a distance, and bytes of all coordinates have the
    same bounds."""
    base, queries = planted(1_500, 32)
    base *= np.exp(0.4 * np.random.default_rng(3).standard_normal((1_500, 1))).astype(np.float32)
    lengths = (base**2).sum(axis=1, keepdims=True) / 1024
    vectors = np.hstack([base, lengths]).astype(np.float32)
    distances = np.hstack([queries, np.full((len(queries), 1), -512, np.float32)])
    codes = IndexCodes("int8", 1)
    with filled(tmp_path, vectors) as store:
        store.build_index(codes)
        table = store._table(0)
        answers = [lance_index._by_codes(table, query, 10, codes, 1_500, 64) for query in distances]
        assert all(answer is None for answer in answers)
        assert recall(store, 0, vectors, distances, 10) == 1.0


def test_codes_that_find_too_few_are_refused_and_the_index_is_the_one_before(
    tmp_path: Path,
) -> None:
    # Without clusters, and with few dims, signs tell nothing apart.
    vectors = np.random.default_rng(0).standard_normal((1_500, 8)).astype(np.float32)
    with filled(tmp_path, vectors) as store:
        store.build_index(IndexCodes("int8", 8))
        with pytest.raises(DataError, match=r"binary with oversample 1 finds \d+%"):
            store.build_index(IndexCodes("binary", 1))
        assert codes_of(store._table(0)) == IndexCodes("int8", 8)
        assert [one.index_type for one in indexes(store)] == ["IvfSq"]
        store.upsert(block([1_500], vectors[:1] * 50))
        assert store.search({0: vectors[:1]}, 1)[0].ids.to_pylist() == [1_500]
        # Bytes have the same bounds in all coordinates, so one that is far larger loses the others.
        vectors[:, 0] *= 1e-4
        vectors[:, 1] += 1e5
        store.upsert(block(range(1_500), vectors))
        with pytest.raises(DataError, match="int8 with oversample 4 finds"):
            store.build_index(IndexCodes("int8", 4))


def test_codes_that_lancedb_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, _ = planted(1_200, 12)
    with filled(tmp_path, vectors[:999]) as store:
        # A small space has no index, so its length is no reason to refuse.
        assert store.build_index(IndexCodes("binary", 4)) == []
        store.upsert(block(range(1_200), vectors))
        with pytest.raises(DataError, match="12 numbers"):
            store.build_index(IndexCodes("binary", 2))
        monkeypatch.delattr(lancedb.index, "IvfSq")
        with pytest.raises(DataError, match=r"pip install --upgrade lancedb"):
            store.build_index(IndexCodes("int8", 2))
        assert indexes(store) == []
    assert {kind: form.config for kind, form in FORMS.items()} == KINDS


QUERY = {0: np.ones((1, DIMS[0]), np.float32)}


def vectors(
    rows: int = 20, kind: pa.DataType | None = None, values: np.ndarray | None = None
) -> pa.Array:
    block = vectors_of(0, rows).numpy() if values is None else values
    flat = pa.array(block.reshape(-1)).cast(kind or pa.float32(), safe=False)
    return pa.FixedSizeListArray.from_arrays(flat, block.shape[1])


def table(folder: Path, name: str = "mine", **columns: Any) -> Any:
    """Make a table, with the columns `id` and `e0` unless they are among the others."""
    rows = len(next(iter(columns.values()))) if columns else 20
    every = {"id": pa.array(range(rows)), "e0": vectors(rows), **columns}
    return lancedb.connect(folder).create_table(name, pa.table(every), on_bad_vectors="null")


@pytest.mark.parametrize("kind", [pa.float16(), pa.float64()])
def test_vectors_of_other_precisions(kind: pa.DataType, tmp_path: Path) -> None:
    table(tmp_path / "own", id=pa.array(range(300)), e0=vectors(300, kind))
    lineage = lineage_of(tmp_path / "line", 1, canaries=2)
    address = f"lance-table:{tmp_path}/own#table=mine&v0=e0"
    with closing(Reader.open(lineage, {"object": address})) as reader:
        query = vectors_of(0).numpy()[17]
        assert reader.search(query, 1, 0, metric="l2")[0].ids.to_pylist() == [17]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_a_vector_that_is_not_finite_is_refused_wherever_it_is(tmp_path: Path, bad: float) -> None:
    values = vectors_of(0, 20).numpy().astype(np.float64)
    values[7, 2] = bad
    table(tmp_path, id=pa.array(range(20)), e0=vectors(20, pa.float64(), values))
    with open_store(f"lance-table:{tmp_path}#table=mine&v0=e0") as store:
        for read in (
            lambda: store.fetch([7]),
            lambda: list(store.scan()),
            lambda: store.search(QUERY, 1),
        ):
            with pytest.raises(
                IntegrityError, match=r"vector of id 7 .* is not finite; correct it"
            ):
                read()


def test_a_view_is_of_one_moment_and_the_next_sees_what_was_written(tmp_path: Path) -> None:
    mine = table(tmp_path)
    with open_store(f"lance-table:{tmp_path}#table=mine&v0=e0") as store:

        def look(view: Any) -> int:
            before = view.count()[0]
            mine.delete("id >= 10")
            assert len(view.search(QUERY, 99)[0]) == before
            return int(before)

        assert store.read_consistently(look) == 20
        assert store.read_consistently(lambda view: view.count()) == {0: 10}


@pytest.mark.parametrize("writes", [0, 3])
def test_a_table_that_was_made_anew_is_compared_again(writes: int, tmp_path: Path) -> None:
    """It has the version numbers of the one before, or lower ones."""
    lineage = lineage_of(tmp_path / "line", 1)
    ids = pa.array(range(300))
    mine = table(tmp_path / "own", id=ids, e0=vectors(300))
    for _ in range(writes):
        mine.add(pa.table({"id": pa.array([999]), "e0": vectors(1)}))
        mine.delete("id = 999")
    database = lancedb.connect(tmp_path / "own")
    address = f"lance-table:{tmp_path / 'own'}#table=mine&v0=e0"
    with closing(Reader.open(lineage, {"object": address})) as reader:
        query = vectors_of(0)[7].numpy()
        before = reader.search(query, 3)[0].ids
        for _ in range(2):
            database.drop_table("mine")
            other = vectors(values=-vectors_of(0, 300).numpy())
            database.create_table("mine", pa.table({"id": ids, "e0": other}))
            for read in (
                lambda: reader.search(query, 3),
                lambda: reader.embed([7]),
                lambda: list(reader.store().scan()),
            ):
                with pytest.raises(IntegrityError, match="200 of 200 vectors"):
                    read()
            database.drop_table("mine")
            database.create_table("mine", pa.table({"id": ids, "e0": vectors(300)}))
            assert reader.search(query, 3)[0].ids.equals(before)
            assert reader.embed([7]).sources.tolist() == [0]
            (rows,) = reader.store().scan()
            assert len(rows) == 300
        database.drop_table("mine")
        for read in (lambda: reader.search(query, 3), lambda: reader.embed([7])):
            with pytest.raises((DataError, StoreError)):
                read()


DATA = pa.table({"id": [1, 2]})


def test_the_names_of_both_namings_are_read(tmp_path: Path) -> None:
    assert read_state(tmp_path, 3) == TableState(3, None)
    (tmp_path / "_versions").mkdir()
    (tmp_path / "_versions" / "3.manifest").write_bytes(b"12")
    old = read_state(tmp_path, 3)
    assert old.manifest is not None
    assert old.manifest[2] == 2
    (tmp_path / "_versions" / "18446744073709551612.manifest").write_bytes(b"123")
    assert read_state(tmp_path, 3) != old
