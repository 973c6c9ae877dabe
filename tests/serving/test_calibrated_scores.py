"""Calibrated scores over HTTP: on request alone, said in the answer, as the reader has them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from starlette.testclient import TestClient
from tests.support.running_service import ADDRESS
from tests.support.text_encoders import ADDRESSES, encoded, sentences, word_vectors

from evergram import Client
from evergram.errors import LineageError
from evergram.lineage.lineage import Lineage
from evergram.migration.make_sidecar import make_sidecar
from evergram.releasing.files.align import AlignSettings, align
from evergram.retrieval.fill import fill, space_of, stored_rows
from evergram.retrieval.reader import QueryVectors, Reader
from evergram.retrieval.sidecars.sidecar_files import SidecarFiles
from evergram.retrieval.version_maps import VersionMaps
from evergram.serving.app import create_app
from evergram.serving.service import Service
from evergram.stores import open_store
from evergram.vector_files.open_embeddings import EmbeddingFile

CALIBRATED: Any = {"scores": "calibrated", "query_vectors": "own"}
QUERY = word_vectors(["word1 word2 word3"], 0, 10)


def scores_of(answer: Any) -> list[float]:
    assert answer.status_code == 200, answer.text
    return [hit["score"] for hit in answer.json()["data"][0]["hits"]]


@pytest.mark.parametrize("metric", ["ip", "cosine"])
def test_json_and_the_client_give_what_the_reader_gives(tmp_path: Path, metric: Any) -> None:
    lineage = Lineage.create(tmp_path / "line", "line")
    old, new = encoded(tmp_path, ADDRESSES[0]), encoded(tmp_path, ADDRESSES[1])
    align(old, new, lineage, AlignSettings(transform="low_rank", rank=4, held_out=0.5))
    with closing(Reader.open(lineage.path)) as reader:
        raw = reader.search(QUERY, 7, 0, metric=metric)[0].scores
        expected, other = (
            reader.search(QUERY, 7, 0, None, metric, scores="calibrated", query_vectors=made)[
                0
            ].scores
            for made in get_args(QueryVectors)
        )
    assert not np.allclose(other, expected, rtol=1e-3)
    assert not np.allclose(raw, expected, rtol=5e-3)
    with TestClient(create_app(Service.open(lineage.path)), base_url=ADDRESS) as http:
        asked = {"vector": QUERY[0].tolist(), "version": 0, "k": 7, "metric": metric}
        answer = http.post("/v1/search", json=asked)
        np.testing.assert_allclose(scores_of(answer), raw, rtol=1e-5)
        assert "scores" not in answer.json()["evergram"]
        answer = http.post("/v1/search", json={**asked, **CALIBRATED})
        np.testing.assert_allclose(scores_of(answer), expected, rtol=1e-5)
        assert answer.json()["evergram"]["scores"] == "calibrated"
        read = http.post("/v1/search", json={**asked, **CALIBRATED, "query_vectors": "read_back"})
        np.testing.assert_allclose(scores_of(read), other, rtol=1e-5)
        numbered = http.post("/v1/search", json={**asked, **CALIBRATED, "query_vectors": 1})
        np.testing.assert_allclose(scores_of(numbered), other, rtol=1e-5)
        odd = http.post("/v1/search", json={**asked, **CALIBRATED, "query_vectors": -1})
        assert odd.status_code == 400
        unsaid = http.post("/v1/search", json={**asked, "scores": "calibrated"})
        assert unsaid.status_code == 400
        assert "query_vectors is not given" in unsaid.json()["error"]["message"]
        of_id = http.post("/v1/search", json={"id": "text-1", **CALIBRATED})
        assert "'query_vectors' is for 'vector'" in of_id.json()["error"]["message"]
        assert http.post("/v1/search", json={**asked, "scores": "nice"}).status_code == 400
        client = Client("http://testserver", retries=0)
        client._http = http  # type: ignore[assignment]
        hits = client.search(QUERY, 7, 0, metric=metric, **CALIBRATED)[0]
        np.testing.assert_allclose(hits.scores, expected, rtol=1e-5)


def test_versions_without_enough_canaries_are_refused(tmp_path: Path) -> None:
    lineage, texts = Lineage.create(tmp_path / "line", "line"), sentences(44)
    old, new = (encoded(tmp_path, address, texts=texts) for address in ADDRESSES[:2])
    align(old, new, lineage, AlignSettings("orthogonal", held_out=0.5, allow_small_overlap=True))
    with TestClient(create_app(Service.open(lineage.path)), base_url=ADDRESS) as http:
        asked = {"vector": QUERY[0].tolist(), "version": 0, **CALIBRATED}
        refusal = http.post("/v1/search", json=asked)
        assert refusal.status_code == 400
        assert "Ask for raw scores" in refusal.json()["error"]["message"]
        client = Client("http://testserver", retries=0)
        client._http = http  # type: ignore[assignment]
        with pytest.raises(LineageError, match="Ask for raw scores"):
            client.search(QUERY, 5, 0, **CALIBRATED)


def test_an_id_with_a_sidecar_is_searched_as_its_rows_are_read(tmp_path: Path) -> None:
    """Rows are then read by the way back, and so must the query be: an object finds itself."""
    lineage = Lineage.create(tmp_path / "line", "line")
    old, new = encoded(tmp_path, ADDRESSES[0]), encoded(tmp_path, ADDRESSES[1])
    align(old, new, lineage, AlignSettings(transform="low_rank", rank=4, held_out=0.5))
    make_sidecar(lineage, old, size=8).save(tmp_path / "one.sidecar")
    asked = {"id": "text-3", "version": 0, "k": 5, "metric": "cosine", "scores": "calibrated"}
    answers = []
    for files in (SidecarFiles(), SidecarFiles([tmp_path / "one.sidecar"])):
        service = Service.open(lineage.path, sidecars=files)
        with TestClient(create_app(service), base_url=ADDRESS) as http:
            answers.append(http.post("/v1/search", json=asked).json()["data"][0]["hits"])
    assert answers[0] == answers[1]
    assert answers[0][0]["id"] == "text-3"


def test_an_id_of_a_version_between_is_calibrated_as_a_query_of_that_version(
    tmp_path: Path,
) -> None:
    """In a store that is partly refreshed, beside the reader that is told whose the query is."""
    lineage = Lineage.create(tmp_path / "line", "line")
    settings = AlignSettings(transform="low_rank", rank=4, held_out=0.5)
    old: EmbeddingFile | int = encoded(tmp_path, ADDRESSES[0])
    for number, address in enumerate(ADDRESSES[1:]):
        align(old, encoded(tmp_path, address), lineage, settings)
        old = number + 1
    address, maps = f"sqlite:{tmp_path / 'rows.db'}#object", VersionMaps(lineage)
    with closing(open_store(address, create="string")) as store:
        fill(lineage, store, "object", 2)
        ids, texts = pa.array([f"text-{i}" for i in range(9)]), sentences()[:9]
        store.add_space(space := space_of(lineage, 1))
        rows = stored_rows(lineage, maps, space, ids, word_vectors(texts, 1, 12))
        store.delete(ids)
        store.upsert(rows)
    asked = {"id": "text-3", "version": 0, "k": 7, "metric": "ip", "scores": "calibrated"}
    service = Service.open(lineage.path, {"object": address})
    with TestClient(create_app(service), base_url=ADDRESS) as http:
        found = scores_of(http.post("/v1/search", json=asked))
    with closing(Reader.open(lineage.path, {"object": address})) as reader:
        row = reader.embed(["text-3"], 0)
        assert row.sources.tolist() == [1]
        query: Any = row.vectors
        expected, read_back = (
            reader.search(query, 7, 0, scores="calibrated", query_vectors=made)[0].scores
            for made in (1, "read_back")
        )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not np.allclose(expected, read_back, rtol=1e-3)
