"""Objects described by their features, encoded by the encoder that was published."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.testing import assert_allclose
from pydantic import ValidationError
from tests.support.lineages import lineage_of
from tests.support.publishing import publish_next
from tests.support.running_service import Running, running
from tests.support.text_encoders import text_lineage

from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import Schema
from evergram.encoders.graph.graphsage import GraphSage
from evergram.encoders.two_tower import TwoTower
from evergram.errors import DataError, LineageError
from evergram.lineage.artefact import Artefact, EncoderParts
from evergram.lineage.lineage import Lineage
from evergram.serving.feature_encoders import FeatureEncoders
from evergram.serving.object_features import MOST_FEATURES, Features


def corpus() -> Corpus:
    interactions = pa.table({"query": [1, 2, 3], "candidate": ["a", "b", "a"]})
    features = pa.table({"id": ["a", "b"], "genre": [["war", "love"], ["war"]], "year": [1990, 7]})
    return Corpus.from_tables(interactions, None, features)


def artefact(encoder: Encoder, options: dict[str, Any], back: Any = None) -> Artefact:
    embeddings = encoder.embed_all(corpus())
    parts = EncoderParts(
        encoder.kind,
        options,
        encoder.state_dict(),
        encoder.schema.inputs,
        encoder.schema.vocabularies,
    )
    sides = {"query": corpus().queries, "candidate": corpus().candidates}
    return Artefact(
        encoder.dim,
        {side: (entities.vocabulary.keys, embeddings[side]) for side, entities in sides.items()},
        back,
        {"metrics": {"model": {}}},
        {"seed": 0},
        parts,
    )


def two_tower(dim: int) -> TwoTower:
    draw = torch.Generator().manual_seed(dim)
    encoder = TwoTower(Schema.of(corpus(), features=True), dim, generator=draw, hidden=[4])
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return encoder.eval()


BACK = torch.arange(12.0).reshape(3, 4)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    tmp_path = tmp_path_factory.mktemp("features")
    lineage = Lineage.create(tmp_path / "shop", "shop")
    publish_next(lineage, artefact(two_tower(3), {"dim": 3, "hidden": [4]}))
    back = LinearTransform.from_matrix(BACK)
    publish_next(lineage, artefact(two_tower(4), {"dim": 4, "hidden": [4]}, back))
    with running(tmp_path / "shop") as shop:
        yield shop


def rows_of(answer: Any) -> list[list[float]]:
    assert answer.status_code == 200, answer.text
    return [row["embedding"] for row in answer.json()["data"]]


def test_features_of_a_stored_object_encode_to_its_embedding(shop: Running) -> None:
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


def test_an_unseen_object_is_placed_by_its_features(shop: Running) -> None:
    encoder = two_tower(4)
    features = pa.table({"id": ["new"], "genre": [["love", "unheard"]]})
    unseen = Corpus.from_tables(
        pa.table({"query": [1], "candidate": ["new"]}), None, features
    ).candidates
    expected = encoder.encode("candidate", unseen).numpy()
    described = {"features": {"genre": ["love", "unheard"]}}
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


def test_numbers_and_their_text_are_the_same_keys(shop: Running) -> None:
    encoders = FeatureEncoders(Lineage.open(shop.folder))
    objects = [
        Features(features={"genre": ["war"], "year": 1990}, id=1),
        Features(features={"genre": "war", "year": ["1990"]}, id="a"),
        Features(features={"genre": "war", "year": "1990"}),
    ]
    mixed = encoders.encode(1, "candidate", objects)
    assert mixed.dtype == np.float32
    for row, described in enumerate(objects):
        assert_allclose(encoders.encode(1, "candidate", [described])[0], mixed[row], rtol=1e-5)
    # The encoder knows the id "a", and not 1.
    assert_allclose(mixed[0], mixed[2], rtol=1e-5)
    assert not np.allclose(mixed[1], mixed[2], rtol=1e-3)


def test_an_encoder_is_restored_once(shop: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    lineage = Lineage.open(shop.folder)
    encoders = FeatureEncoders(lineage)
    described = [Features(features={"genre": "war"})]
    first = encoders.encode(1, "candidate", described)
    monkeypatch.setattr(Lineage, "encoder_parts", None)
    assert_allclose(encoders.encode(1, "candidate", described), first)


def test_sides_and_versions_that_cannot_be_encoded_are_refused(
    shop: Running, tmp_path: Path
) -> None:
    described = [Features(features={"genre": "war"})]
    encoders = FeatureEncoders(Lineage.open(shop.folder))
    with pytest.raises(DataError, match="There is no side 'film'; there is query and candidate"):
        encoders.encode(1, "film", described)
    with pytest.raises(DataError, match="has no feature 'genre' of side 'query'; it has none, but"):
        encoders.encode(1, "query", described)
    of_files = FeatureEncoders(lineage_of(tmp_path / "files", versions=1))
    with pytest.raises(LineageError, match="Version 0 came from a file and has no encoder"):
        of_files.encode(0, "object", described)
    of_texts = FeatureEncoders(text_lineage(tmp_path))
    with pytest.raises(LineageError, match="Version 0 encodes texts, not features; send strings"):
        of_texts.encode(0, "object", described)


@pytest.mark.long
def test_an_encoder_that_needs_the_graph_says_so(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    schema = Schema.of(corpus(), features=True)
    encoder = GraphSage(schema, 4, generator=draw, layers=1, width=4, ids=True)
    lineage = Lineage.create(tmp_path / "graph", "graph")
    options = {"dim": 4, "layers": 1, "width": 4, "ids": True}
    made = artefact(two_tower(4), {})
    parts = EncoderParts(
        "graphsage", options, encoder.state_dict(), schema.inputs, schema.vocabularies
    )
    publish_next(lineage, Artefact(4, made.embeddings, None, made.metrics, made.recipe, parts))
    with running(tmp_path / "graph") as served:
        answer = served.post("/v1/embeddings", {"input": {"features": {"genre": "war"}}})
        assert answer.status_code == 400
        assert "whole graph" in answer.json()["error"]["message"]


def test_keys_keep_their_types() -> None:
    features = {"year": 1990, "price": 9.5, "genre": ["war", "7"], "listed": None}
    described = Features.model_validate({"features": features})
    assert described.features == features
    assert isinstance(described.features["year"], int)
    assert described.id is None
    assert Features.model_validate({"features": {}, "id": "007"}).id == "007"


def test_a_value_that_is_not_a_key_is_refused() -> None:
    many: dict[str, Any] = {f"f{n}": n for n in range(MOST_FEATURES + 1)}
    Features.model_validate({"features": dict(list(many.items())[1:])})
    for wrong in (
        {"id": 1},
        {"features": many},
        {"features": {"year": True}},
        {"features": {"year": [[1]]}},
        {"features": {"price": float("nan")}},
        {"features": {"genre": "x" * 1025}},
        {"features": {}, "id": 1.0},
        {"features": {}, "genre": "war"},
    ):
        with pytest.raises(ValidationError):
            Features.model_validate(wrong)
