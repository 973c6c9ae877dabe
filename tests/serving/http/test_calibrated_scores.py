"""Calibrated scores over HTTP: on request alone, said in the answer, as the reader has them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.support.running_service import ADDRESS
from tests.support.text_encoders import ADDRESSES, encoded, text_lineage, word_vectors

from evergram import Client
from evergram.errors import LineageError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.align_settings import AlignSettings
from evergram.retrieval.reader import Reader
from evergram.serving.app import create_app
from evergram.serving.service import Service

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
        expected = reader.search(QUERY, 7, 0, metric=metric, scores="calibrated")[0].scores
    assert not np.allclose(raw, expected, rtol=5e-3)
    with TestClient(create_app(Service.open(lineage.path)), base_url=ADDRESS) as http:
        asked = {"vector": QUERY[0].tolist(), "version": 0, "k": 7, "metric": metric}
        answer = http.post("/v1/search", json=asked)
        np.testing.assert_allclose(scores_of(answer), raw, rtol=1e-5)
        assert "scores" not in answer.json()["evergram"]
        answer = http.post("/v1/search", json={**asked, "scores": "calibrated"})
        np.testing.assert_allclose(scores_of(answer), expected, rtol=1e-5)
        assert answer.json()["evergram"]["scores"] == "calibrated"
        assert http.post("/v1/search", json={**asked, "scores": "nice"}).status_code == 400
        client = Client("http://testserver", retries=0)
        client._http = http  # type: ignore[assignment]
        hits = client.search(QUERY, 7, 0, metric=metric, scores="calibrated")[0]
        np.testing.assert_allclose(hits.scores, expected, rtol=1e-5)


def test_versions_without_enough_canaries_are_refused(tmp_path: Path) -> None:
    lineage = text_lineage(tmp_path)
    with TestClient(create_app(Service.open(lineage.path)), base_url=ADDRESS) as http:
        asked = {"vector": QUERY[0].tolist(), "version": 0, "scores": "calibrated"}
        refusal = http.post("/v1/search", json=asked)
        assert refusal.status_code == 400
        assert "Ask for raw scores" in refusal.json()["error"]["message"]
        client = Client("http://testserver", retries=0)
        client._http = http  # type: ignore[assignment]
        with pytest.raises(LineageError, match="Ask for raw scores"):
            client.search(QUERY, 5, 0, scores="calibrated")
