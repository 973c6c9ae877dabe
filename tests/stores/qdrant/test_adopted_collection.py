"""What only a collection of one's own has: lengths that are lost, a server's answers, points."""

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


def test_points_with_ids_of_two_types_are_refused_when_they_are_read(tmp_path: Path) -> None:
    points: dict[Any, Any] = {i: {} for i in range(5)} | {str(uuid.UUID(int=4)): {}}
    with open_store(collection(tmp_path, points)) as store:
        for read in (lambda: store.search(QUERY, 9), lambda: list(store.scan())):
            with pytest.raises(IntegrityError, match="numbers and ids that are texts"):
                read()


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


def test_a_cosine_collection_is_searched_by_each_metric(tmp_path: Path) -> None:
    lineage, vectors = unit_lineage(tmp_path / "line")
    address = collection(tmp_path / "own", {i: {} for i in range(60)}, "Cosine", vectors)
    query = np.linspace(-2, 3, 6).astype(np.float32)
    asked, rows = query.astype(float), vectors.astype(float)
    truth: dict[Metric, Any] = {
        "ip": rows @ asked,
        "l2": -((rows - asked) ** 2).sum(axis=1),
        "cosine": rows @ asked / np.linalg.norm(rows, axis=1) / np.linalg.norm(asked),
    }
    with closing(Reader.open(lineage, {"object": address})) as reader:
        for metric, scores in truth.items():
            (hits,) = reader.search(query, 7, 0, metric=metric)
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


def test_a_server_is_asked_for_exact_searches(tmp_path: Path) -> None:
    """The answers are made by the tests: no real server runs here."""
    held = {0: range(280), 1: range(100, 200)}
    local = own_store("qdrant-collection, Euclid", tmp_path / "own", 300, held)
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
