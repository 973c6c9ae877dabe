"""Collections of every sort: ids of points and of a field, each distance, a server's answers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from qdrant_client import QdrantClient, models
from tests.support.lineages import DIMS, lineage_of, vectors_of
from tests.support.own_stores import own_store
from tests.support.publishing import publish_next
from tests.support.qdrant_answers import qdrant_answers

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.retrieval.reader import Metric, Reader
from evergram.stores.open_store import open_store
from evergram.stores.qdrant import adopted_collection
from evergram.stores.qdrant.adopted_collection import AdoptedCollection

QUERY = {0: np.ones((1, DIMS[0]), np.float32)}
KIND = "qdrant-collection, Dot"


def collection(
    folder: Path,
    points: Mapping[Any, Mapping[str, Any]],
    distance: str = "Dot",
    vectors: np.ndarray | None = None,
    **shape: Any,
) -> str:
    """Make a collection `mine` with a vector without a name, and return its address, to v0=."""
    vectors = vectors_of(0, len(points)).numpy() if vectors is None else vectors
    params = models.VectorParams(size=vectors.shape[1], distance=models.Distance(distance), **shape)
    with closing(QdrantClient(path=str(folder))) as client:
        client.create_collection("mine", vectors_config=params)
        written = [
            models.PointStruct(id=key, vector=vectors[i].tolist(), payload=dict(payload))
            for i, (key, payload) in enumerate(points.items())
        ]
        if written:
            client.upsert("mine", written)
    return f"qdrant-collection:{folder}#collection=mine&v0="


def test_ids_that_are_uuids(tmp_path: Path) -> None:
    points: dict[Any, Any] = {str(uuid.UUID(int=i)): {} for i in range(9)}
    with open_store(collection(tmp_path, points)) as store:
        assert store.id_type == pa.string()
        wanted = str(uuid.UUID(int=4))
        (rows,) = store.fetch([wanted, "no uuid", wanted.replace("-", "")])
        assert rows.ids.to_pylist() == [wanted]
        assert np.array_equal(rows.vectors[0], vectors_of(0, 9).numpy()[4])
        assert sum(len(rows) for rows in store.scan(size=2)) == 9
        assert len(store.search(QUERY, 3, ids=[wanted, "x"])[0]) == 1


@pytest.mark.parametrize("field", ["key", "number"])
def test_ids_in_a_field_of_the_payload(tmp_path: Path, field: str) -> None:
    points = {i + 7: {"key": f"k'{i}", "number": -i} for i in range(20)}
    points |= {99: {"key": None}, 100: {}}
    with open_store(f"{collection(tmp_path, points)}&id={field}&filter={field}") as store:
        asked: list[Any] = ["k'3", "k'19", "x\0"] if field == "key" else [-3, -19, 3]
        (rows,) = store.fetch(asked)
        assert sorted(rows.ids.to_pylist(), key=str) == sorted(asked[:2], key=str)
        assert store.count() == {0: 20}  # a point without the field is no row
        (hits,) = store.search(QUERY, 99)
        assert len(hits) == 20
        assert store.where({field: asked[0]}).search(QUERY, 9)[0].ids.to_pylist() == [asked[0]]


@pytest.mark.parametrize(
    ("points", "more", "words"),
    [
        ({}, "", "no point yet"),
        ({1: {"k": "a"}, 2: {"k": "a"}}, "&id=k", "the id 'a' twice"),
        ({1: {"k": 1}, 2: {"k": "a"}}, "&id=k", "numbers and ids that are texts"),
        ({1: {"k": 1.5}}, "&id=k", "an id is a whole number or a text"),
        ({1: {"k": True}}, "&id=k", "an id is a whole number or a text"),
        ({1: {"k": [1, 2]}}, "&id=k", "an id is a whole number or a text"),
        ({1: {"k": 1, "m": 2}}, "&id=z", "'z', which no point has; there are k, m"),
        ({1: {"k": 1, "m": 2}}, "&filter=z", "'z', which no point has; there are k, m"),
        ({2**63: {}}, "", "more than 63 bits"),
    ],
)
def test_ids_and_fields_that_cannot_be_read(
    tmp_path: Path, points: Mapping[Any, Any], more: str, words: str
) -> None:
    vectors = np.ones((max(len(points), 1), 6), np.float32)
    with pytest.raises((StoreError, IntegrityError), match=words):
        open_store(collection(tmp_path, points, vectors=vectors) + more)


def test_points_with_ids_of_two_types_are_refused_when_they_are_read(tmp_path: Path) -> None:
    points: dict[Any, Any] = {i: {} for i in range(5)} | {str(uuid.UUID(int=4)): {}}
    with open_store(collection(tmp_path, points)) as store:
        for read in (lambda: store.search(QUERY, 9), lambda: list(store.scan())):
            with pytest.raises(IntegrityError, match="numbers and ids that are texts"):
                read()


def test_an_id_that_comes_to_be_twice_is_refused(tmp_path: Path) -> None:
    points = {i: {"k": i} for i in range(5)}
    with open_store(collection(tmp_path, points) + "&id=k") as store:
        assert isinstance(store, AdoptedCollection)
        point = models.PointStruct(id=9, vector=[1.0] * 6, payload={"k": 3})
        store._ask("upsert", "mine", [point])
        for read in (lambda: store.fetch([3]), lambda: store.search(QUERY, 9)):
            with pytest.raises(IntegrityError, match="twice"):
                read()


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ("#collection=none&v0=e0", DataError, "no collection 'none' at .*; it has documents"),
        ("#collection=documents&v0=e9", StoreError, "'e9', which .*; it has e0"),
        ("#collection=documents&v0=", StoreError, "without a name, v0=, .*; it has e0"),
    ],
)
def test_names_that_are_not_there(
    tmp_path: Path, more: str, error: type[Exception], words: str
) -> None:
    own_store(KIND, tmp_path, 5)
    with pytest.raises(error, match=words):
        open_store(f"qdrant-collection:{tmp_path}{more}")


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no folder .*none of Qdrant's local mode"):
        open_store(f"qdrant-collection:{tmp_path}/none#collection=mine&v0=")
    assert not list(tmp_path.iterdir())


def test_it_cannot_be_created(tmp_path: Path) -> None:
    address = own_store(KIND, tmp_path, 5)
    with pytest.raises(StoreError, match="only reads"):
        open_store(address, create="int64")


@pytest.mark.parametrize(
    ("distance", "shape", "words"),
    [
        ("Manhattan", {}, "distance Manhattan; it must be Dot, Cosine or Euclid"),
        (
            "Dot",
            {
                "multivector_config": models.MultiVectorConfig(
                    comparator=models.MultiVectorComparator.MAX_SIM
                )
            },
            "several vectors a point",
        ),
    ],
)
def test_vectors_of_another_sort_are_refused(
    tmp_path: Path, distance: str, shape: dict[str, Any], words: str
) -> None:
    with pytest.raises(StoreError, match=words):
        open_store(collection(tmp_path, {}, distance, np.ones((0, 6), np.float32), **shape))


def test_a_vector_that_is_not_there_any_more_is_an_error(tmp_path: Path) -> None:
    with open_store(own_store(KIND, tmp_path, 5)) as store:
        assert isinstance(store, AdoptedCollection)
        store._ask("delete_collection", "documents")
        for read in (store.spaces, lambda: store.read_consistently(lambda v: v.search(QUERY, 3))):
            with pytest.raises((DataError, StoreError), match="no collection"):
                read()


def test_filters_of_every_form(tmp_path: Path) -> None:
    points = {
        i: {
            "kind": ["news", "sport", "o'clock"][i % 3],
            "year": 2000 + i % 20,
            "price": i / 4,
            "sold": i % 2 == 0,
            "day": f"2026-01-{i + 1:02}T00:00:00Z" if i < 31 else None,
            "deep": {"er": i},
            "many": [i, i + 1],
        }
        for i in range(40)
    }
    address = collection(tmp_path, points) + "&filter=kind,year,price,sold,day,deep.er,many"
    with open_store(address) as store:

        def ids(asked: Any) -> list[int]:
            return sorted(store.where(asked).search(QUERY, 99)[0].ids.to_pylist())

        assert ids({"kind": "o'clock"}) == list(range(2, 40, 3))
        listed = ids({"kind": ["news", "sport"], "year": [2000, 2003.0]})
        assert listed == [i for i in range(40) if i % 3 < 2 and i % 20 in (0, 3)]
        assert ids({"day": {"gte": "2026-01-30", "lt": "2026-02-02"}}) == [29, 30]
        assert ids({"day": {"gte": "2026-01-31T01:00:00+01:00"}}) == [30]
        assert ids({"price": 2}) == [8]
        assert ids({"price": [0.25, 9]}) == [1, 36]
        assert ids({"year": 2000.5}) == []
        assert ids({"year": {"gt": 2018.5}}) == [19, 39]
        assert ids({"sold": False, "price": {"lt": 1}}) == [1, 3]
        assert ids({"sold": [True, False]}) == list(range(40))
        assert ids({"deep.er": 7, "many": 8}) == [7]
        # Qdrant's payload has no types: a value of another type is in no point.
        assert ids({"year": "2001"}) == ids({"kind": 3}) == ids({"price": True}) == []
        condition = models.FieldCondition(key="price", range=models.Range(gt=9.5))
        assert ids(models.Filter(should=[condition])) == [39]
        for asked, words in (
            ({"title": "x"}, "may name day, deep.er"),
            ("kind = 'news'", "Qdrant has no SQL"),
            ({"kind": {"gt": "a"}}, "orders numbers and times alone"),
        ):
            with pytest.raises(DataError, match=words):
                ids(asked)


def unit_lineage(folder: Path, scale: float = 1.0) -> tuple[Lineage, np.ndarray]:
    """Return a lineage of one version of vectors of one length, and the vectors."""
    vectors = torch.nn.functional.normalize(vectors_of(0, 60), dim=1) * scale
    lineage = Lineage.create(folder, "line")
    ids = pa.array(range(60))
    block = (ids, vectors)
    described = {"metrics": {"model": {}}, "version": 0}
    canaries = {"object": (ids.cast(pa.string()), vectors)}
    publish_next(lineage, Artefact(6, {"object": block}, None, described, {}, canaries=canaries))
    return lineage, vectors.numpy()


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_a_cosine_collection_is_searched_by_each_metric(tmp_path: Path, metric: Metric) -> None:
    lineage, vectors = unit_lineage(tmp_path / "line")
    address = collection(tmp_path / "own", {i: {} for i in range(60)}, "Cosine", vectors)
    query = np.linspace(-2, 3, 6).astype(np.float32)
    with closing(Reader.open(lineage, {"object": address})) as reader:
        (hits,) = reader.search(query, 7, 0, metric=metric)
        asked, rows = query.astype(float), vectors.astype(float)
        scores = {
            "ip": rows @ asked,
            "l2": -((rows - asked) ** 2).sum(axis=1),
            "cosine": rows @ asked / np.linalg.norm(rows, axis=1) / np.linalg.norm(asked),
        }[metric]
        best = np.argsort(-scores)[:7]
        assert hits.ids.to_pylist() == best.tolist()
        assert np.allclose(hits.scores, scores[best], atol=1e-5)


def test_a_cosine_collection_of_other_lengths_is_refused_and_the_error_says_why(
    tmp_path: Path,
) -> None:
    lineage, vectors = unit_lineage(tmp_path / "line", 3.0)
    address = collection(tmp_path / "own", {i: {} for i in range(60)}, "Cosine", vectors)
    with pytest.raises(IntegrityError, match=r"60 of 60 vectors .* length 1 when they"):
        Reader.open(lineage, {"object": address})
    dot = collection(tmp_path / "dot", {i: {} for i in range(60)}, "Dot", vectors)
    Reader.open(lineage, {"object": dot}).close()


@pytest.mark.parametrize("kind", [KIND, "qdrant-collection, Euclid"])
def test_a_server_is_asked_for_exact_searches(kind: str, tmp_path: Path) -> None:
    """The answers are made by the tests: no real server runs here."""
    held = {0: range(280), 1: range(100, 200)}
    local = own_store(kind, tmp_path / "own", 300, held)
    lineage = lineage_of(tmp_path / "line", canaries=2)
    with closing(Reader.open(lineage, {"object": local})) as reader:
        expected = searched(reader)
    with qdrant_answers(tmp_path / "own") as server:
        names = local.rpartition("#")[2]
        address = f"qdrant-collection:{server.url}#{names}"
        with closing(Reader.open(lineage, {"object": address})) as reader:
            assert searched(reader) == expected
        paths = {path.partition("?")[0].rpartition("documents")[2] for path, _ in server.asked}
        assert paths == {"", "/points/scroll", "/points/count", "/points/query/batch"}
        bodies = [body for path, body in server.asked if "batch" in path]
        assert bodies
        for search in (one for body in bodies for one in body["searches"]):
            assert search["params"]["exact"] is True
            assert search["params"]["quantization"]["ignore"] is True
        with pytest.raises(DataError, match=r"no collection 'none' at http.*; it has documents"):
            open_store(f"qdrant-collection:{server.url}#collection=none&v0=e0")


def searched(reader: Reader) -> list[Any]:
    query = np.linspace(-1, 2, DIMS[0]).astype(np.float32)
    metrics: list[Metric] = ["ip", "l2", "cosine"]
    conditions = {"category": ["news", "sport"], "year": {"gte": 2003}}
    return [
        (hits.ids.to_pylist(), hits.scores.round(4).tolist(), hits.versions.tolist())
        for metric in metrics
        for ids in (None, list(range(0, 300, 7)))
        for chosen in (None, conditions)
        for hits in reader.search(query, 9, 0, metric=metric, ids=ids, filter=chosen)
    ]


@pytest.fixture
def two_versions(tmp_path: Path) -> Iterator[AdoptedCollection]:
    with open_store(own_store(KIND, tmp_path, 9, {0: range(9), 1: range(0)})) as store:
        assert isinstance(store, AdoptedCollection)
        yield store


def moving(store: AdoptedCollection, moves: int) -> Callable[[Any], list[Any]]:
    """Return a reading during which, so many times, a version gets its first row or loses it."""
    left = [moves]

    def work(view: Any) -> list[Any]:
        versions = list(view.filled())
        if left[0]:
            left[0] -= 1
            vector = models.PointVectors(id=3, vector={"e1": [1.0] * DIMS[1]})
            store._ask("update_vectors", "documents", [vector])
        return versions

    return work


def test_a_version_that_gets_its_first_row_meanwhile_is_read_again(
    two_versions: AdoptedCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert two_versions.read_consistently(moving(two_versions, 1)) == [0, 1]
    two_versions._ask("delete_vectors", "documents", ["e1"], [3])
    monkeypatch.setattr(adopted_collection, "LOOKS", 1)
    with pytest.raises(StoreError, match="got their first rows"):
        two_versions.read_consistently(moving(two_versions, 1))
