"""Objects that no store holds: described by their features, or folded in by what they met."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from tests.support.arrow_requests import ARROW
from tests.support.folding import CANDIDATES, candidates_of, folding_lineage, solved, weight
from tests.support.publishing import publish_next
from tests.support.running_service import Running, client_of, running
from tests.support.text_encoders import text_lineage

from evergram import Lineage
from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import Schema
from evergram.encoders.graph.graphsage import GraphSage
from evergram.encoders.two_tower import TwoTower
from evergram.errors import DataError, LineageError, ServiceError
from evergram.lineage.artefact import Artefact, EncoderParts
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.serving.features import MOST_FEATURES, FeatureEncoders, Features
from evergram.serving.settings import ServiceSettings

BACK = torch.arange(12.0).reshape(3, 4)
WAR: Any = {"features": {"genre": "war"}}


def corpus() -> Corpus:
    interactions = pa.table({"query": [1, 2, 3], "candidate": ["a", "b", "a"]})
    features = pa.table({"id": ["a", "b"], "genre": [["war", "love"], ["war"]], "year": [1990, 7]})
    return Corpus.from_tables(interactions, None, features)


def artefact(encoder: Encoder, options: dict[str, Any], back: Any = None) -> Artefact:
    schema, known = encoder.schema, corpus()
    parts = EncoderParts(
        *(encoder.kind, options, encoder.state_dict()), schema.inputs, schema.vocabularies
    )
    embeddings = encoder.embed_all(known)
    sides = {"query": known.queries, "candidate": known.candidates}
    vectors = {side: (e.vocabulary.keys, embeddings[side]) for side, e in sides.items()}
    return Artefact(encoder.dim, vectors, back, {"metrics": {"model": {}}}, {"seed": 0}, parts)


def two_tower(dim: int) -> TwoTower:
    draw = torch.Generator().manual_seed(dim)
    encoder = TwoTower(Schema.of(corpus(), features=True), dim, generator=draw, hidden=[4])
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return encoder.eval()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    lineage = Lineage.create(tmp_path_factory.mktemp("features") / "shop", "shop")
    publish_next(lineage, artefact(two_tower(3), {"dim": 3, "hidden": [4]}))
    back = LinearTransform.from_matrix(BACK)
    publish_next(lineage, artefact(two_tower(4), {"dim": 4, "hidden": [4]}, back))
    with running(lineage.path) as shop:
        yield shop


def rows_of(answer: Any) -> list[list[float]]:
    assert answer.status_code == 200, answer.text
    return [row["embedding"] for row in answer.json()["data"]]


def test_features_encode_to_the_embedding_at_every_version(shop: Running) -> None:
    objects = [
        {"id": "a", "features": {"genre": ["war", "love"], "year": 1990}},
        {"id": "b", "features": {"genre": "war", "year": "7"}},
    ]
    for version in (0, 1):
        asked = {"model": f"shop@v{version}", "side": "candidate"}
        stored = rows_of(shop.post("/v1/embeddings", {**asked, "input": ["a", "b"]}))
        answer = shop.post("/v1/embeddings", {**asked, "input": objects})
        assert_allclose(rows_of(answer), stored, rtol=1e-4, atol=1e-5)
        assert answer.json()["evergram"]["computed_from"] == [1, 1]
    described = {"features": {"genre": ["love", "unheard"]}}
    unseen = Corpus.from_tables(
        pa.table({"query": [1], "candidate": ["new"]}),
        None,
        pa.table({"id": ["new"], "genre": [["love", "unheard"]]}),
    )
    expected = two_tower(4).encode("candidate", unseen.candidates).numpy()
    now = rows_of(shop.post("/v1/embeddings", {"input": described}))
    assert_allclose(now, expected, rtol=1e-5)
    past = rows_of(shop.post("/v1/embeddings", {"input": [described], "version": 0}))
    assert_allclose(past, expected @ BACK.numpy().T, rtol=1e-4)


def test_features_that_the_encoder_does_not_know_are_refused(shop: Running) -> None:
    for features, words in (
        ({"colour": "red"}, "'colour'"),
        ({"genre": "unheard"}, "none"),
        ({}, "none"),
    ):
        answer = shop.post("/v1/embeddings", {"input": {"features": features}})
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]


def test_numbers_and_their_text_are_the_same_keys(
    shop: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoders = FeatureEncoders(Lineage.open(shop.folder))
    objects = [
        Features(features={"genre": ["war"], "year": 1990}, id=1),
        Features(features={"genre": "war", "year": ["1990"]}, id="a"),
        Features(features={"genre": "war", "year": "1990"}),
    ]
    mixed = encoders.encode(1, "candidate", objects)
    assert mixed.dtype == np.float32
    # An encoder is restored once.
    monkeypatch.setattr(Lineage, "encoder_parts", None)
    for row, described in enumerate(objects):
        assert_allclose(encoders.encode(1, "candidate", [described])[0], mixed[row], rtol=1e-5)
    # The encoder knows the id "a", and not 1.
    assert_allclose(mixed[0], mixed[2], rtol=1e-5)
    assert not np.allclose(mixed[1], mixed[2], rtol=1e-3)


def test_sides_and_versions_that_cannot_be_encoded_are_refused(
    shop: Running, tmp_path: Path
) -> None:
    described = [Features(**WAR)]
    encoders = FeatureEncoders(Lineage.open(shop.folder))
    with pytest.raises(DataError, match="'film'"):
        encoders.encode(1, "film", described)
    with pytest.raises(DataError, match="'genre' of side 'query'"):
        encoders.encode(1, "query", described)
    with pytest.raises(LineageError, match="send strings"):
        FeatureEncoders(text_lineage(tmp_path)).encode(0, "object", described)


@pytest.mark.long
def test_an_encoder_that_needs_the_graph_says_so(tmp_path: Path) -> None:
    schema = Schema.of(corpus(), features=True)
    options: Any = {"layers": 1, "width": 4, "ids": True}
    encoder = GraphSage(schema, 4, generator=torch.Generator().manual_seed(0), **options)
    made = artefact(two_tower(4), {})
    kind = ("graphsage", {"dim": 4, **options}, encoder.state_dict())
    parts = EncoderParts(*kind, schema.inputs, schema.vocabularies)
    lineage = Lineage.create(tmp_path / "graph", "graph")
    publish_next(lineage, Artefact(4, made.embeddings, None, made.metrics, made.recipe, parts))
    with running(tmp_path / "graph") as served:
        answer = served.post("/v1/embeddings", {"input": WAR})
        assert answer.status_code == 400
        assert "whole graph" in answer.json()["error"]["message"]


def test_features_are_keys_or_numbers(shop: Running) -> None:
    features = {"year": 1990, "price": 9.5, "genre": ["war", "7"], "listed": None}
    described = Features.model_validate({"features": features})
    assert described.features == features
    assert isinstance(described.features["year"], int)
    assert Features.model_validate({"features": {}, "id": "007"}).id == "007"
    many: dict[str, Any] = {f"f{n}": n for n in range(MOST_FEATURES + 1)}
    Features.model_validate({"features": dict(list(many.items())[1:])})
    for wrong in (
        {"id": 1},
        {"features": many},
        {"features": {"year": True}},
        {"features": {"year": [[1]]}},
        {"features": {"genre": "x" * 1025}},
        {"features": {}, "id": 1.0},
        {"features": {}, "genre": "war"},
    ):
        answer = shop.post("/v1/embeddings", {"input": wrong})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request"), wrong
    body, headers = b'{"input": {"features": {"price": NaN}}}', {"Content-Type": "application/json"}
    assert shop.http.post("/v1/embeddings", content=body, headers=headers).status_code == 400


LISTS = [["c1", "c5"], ["c7"]]
WEIGHTS = [[2.0, 0.5], [1.0]]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("fold") / "films"
    folding_lineage(folder)
    with running(folder) as served:
        yield served


def test_vectors_are_those_that_python_folds_in(films: Running) -> None:
    answer = films.post("/v1/fold-in", {"candidates": LISTS, "weights": WEIGHTS})
    body = answer.json()
    expected = np.stack([solved([1, 5], WEIGHTS[0]).numpy(), solved([7], WEIGHTS[1]).numpy()])
    assert_allclose(body["vectors"], expected, atol=1e-5)
    fingerprint = Lineage.open(films.folder).manifest(1).fingerprint
    origin = {"version": 1, "computed_from": [1, 1], "side": "query", "fingerprint": fingerprint}
    assert body["evergram"] == origin
    assert answer.headers["x-evergram-version"] == "1"
    assert answer.headers["x-evergram-computed-from"] == "1"
    # A large body is read in pieces.
    draw = np.random.default_rng(0)
    lists = [[f"c{i}" for i in draw.integers(CANDIDATES, size=12)] for _ in range(1500)]
    weights = (draw.random((1500, 12)) + 0.5).tolist()
    body = films.post("/v1/fold-in", {"candidates": lists, "weights": weights}).json()
    folded = Lineage.open(films.folder).fold_in(lists, weights)
    assert_allclose(body["vectors"], folded.numpy(), atol=1e-5)


def test_a_pinned_consumer_gets_its_own_version_through_the_client(tmp_path: Path) -> None:
    lineage = folding_lineage(tmp_path / "films")
    consumers = ConsumerRegistry.open(lineage.path)
    consumers.add("old", "v0", lineage.resolve)
    token = consumers.issue_token("old")
    expected = lineage.fold_in(LISTS, WEIGHTS, version=0).numpy()
    assert expected.shape == (2, 3)
    with running(lineage.path, ServiceSettings(admin_token="the-administrators")) as served:
        served.http.headers["Authorization"] = f"Bearer {token}"
        client = client_of(served.http)
        assert_allclose(client.fold_in(LISTS, WEIGHTS), expected, atol=1e-5)
        assert_allclose(client.fold_in(LISTS[0], WEIGHTS[0], "v0"), expected[:1], atol=1e-5)
        with pytest.raises(ServiceError, match="may not read"):
            client.fold_in(LISTS, version=1)
        with pytest.raises(DataError, match="1 of 2 candidates are not stored: 'x'"):
            client.fold_in(["c1", "x"])
        assert client.fold_in(["c1", "x"], missing="skip").shape == (1, 3)


def test_an_integer_in_another_form_is_another_candidate(tmp_path: Path) -> None:
    folding_lineage(tmp_path / "films", ids="integers")
    with running(tmp_path / "films") as films:
        asked: dict[str, Any] = {"candidates": [["1", "05"], ["07", "7"]]}
        asked["weights"] = [[2.0, 3.0], [4.0, 1.0]]
        refused = films.post("/v1/fold-in", asked)
        assert refused.status_code == 400
        assert "2 of 4 candidates are not stored: '05', '07'" in refused.json()["error"]["message"]
        known = {"candidates": [[1], [7]], "weights": [[2.0], [1.0]]}
        skipped = films.post("/v1/fold-in", {**asked, "missing": "skip"})
        assert skipped.json() == films.post("/v1/fold-in", known).json()
        for wrong in ([[2.0], [1.0]], [[2.0, 3.0]]):
            answer = films.post("/v1/fold-in", {**asked, "missing": "skip", "weights": wrong})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "shape")


@pytest.mark.parametrize(("version", "include"), [(0, False), (1, True)])
def test_hits_are_the_best_candidates_that_were_not_met(
    films: Running, version: int, include: bool
) -> None:
    asked = {"candidates": LISTS, "k": 4, "version": version, "include_met": include}
    body = films.post("/v1/fold-in", asked).json()
    queries = Lineage.open(films.folder).fold_in(LISTS, version=version)
    read = candidates_of(1) if version else candidates_of(1) @ weight().T
    for row, met, query in zip(body["data"], LISTS, queries, strict=True):
        ranked = [f"c{i}" for i in (-(read @ query)).argsort().tolist()]
        expected = [c for c in ranked if include or c not in met][:4]
        assert [hit["id"] for hit in row["hits"]] == expected
    assert body["evergram"]["side"] == "candidate"


def test_arrow_answers_have_the_same_numbers(films: Running) -> None:
    for asked in ({"candidates": LISTS}, {"candidates": LISTS, "k": 3}):
        plain = films.post("/v1/fold-in", asked).json()
        answer = films.http.post("/v1/fold-in", json=asked, headers={"accept": ARROW})
        table = pa.ipc.open_stream(answer.content).read_all()
        if "k" in asked:
            hits = [hit["id"] for row in plain["data"] for hit in row["hits"]]
            assert table["id"].to_pylist() == hits
        else:
            vectors = np.float32(table["vector"].to_pylist())
            assert_array_equal(vectors, np.float32(plain["vectors"]))


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"candidates": []}, 400, "candidates"),
        ({"candidates": [[]]}, 400, "Query 1 of 1 has no candidates"),
        ({"candidates": [["x"]]}, 400, "1 of 1 candidates are not stored: 'x'"),
        ({"candidates": [[1]]}, 400, "Ids are strings here"),
        ({"candidates": [["c1"]], "weights": [[0]]}, 400, "must be above 0"),
        ({"candidates": [["c1"]], "weights": [[1, 2]]}, 400, "not as long as the candidates"),
        ({"candidates": [["c1"]], "version": 7}, 404, "0, 1"),
        ({"candidates": [["c1"]], "k": 2000}, 400, "at most 1000"),
        ({"candidates": [["c1"]] * 2000, "k": 100}, 413, "send fewer"),
        ({"candidates": [["c1"] * 70] * 1000}, 413, "70000 candidates are more than the 65536"),
    ],
)
def test_what_cannot_be_folded_in_is_refused(
    films: Running, asked: dict[str, Any], status: int, words: str
) -> None:
    answer = films.post("/v1/fold-in", asked)
    assert words in answer.json()["error"]["message"]
    assert answer.status_code == status


def test_streams_and_objects_of_files_are_not_folded_in(films: Running, served: Running) -> None:
    answer = films.http.post("/v1/fold-in", content=b"", headers={"Content-Type": ARROW})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "request")
    answer = served.post("/v1/fold-in", {"candidates": [[1]]})
    assert answer.status_code == 400
    assert "no side 'candidate'" in answer.json()["error"]["message"]
