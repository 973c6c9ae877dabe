"""Strings sent to the service: an OpenAI client pinned to version 0, and every refusal."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from starlette.testclient import TestClient
from tests.support import text_encoders
from tests.support.lineages import lineage_of
from tests.support.running_service import ADDRESS
from tests.support.text_clients import through_changes
from tests.support.text_encoders import ADDRESSES, CALLS, sentences, text_lineage

from evergram.lineage.lineage import Lineage
from evergram.serving.app import create_app
from evergram.serving.client import Client
from evergram.serving.http.workers import Workers
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.serving.texts.served_texts import ServedTexts
from evergram.texts.text_encoder import Vectors

TEXTS = ["word1 word2 word3", "word4 word9"]


@contextmanager
def running(
    folder: Path, texts: ServedTexts | None, settings: ServiceSettings | None = None
) -> Iterator[TestClient]:
    app = create_app(Service.open(folder, texts=texts), settings)
    with TestClient(app, base_url=ADDRESS) as http:
        yield http


def embed(http: TestClient, texts: Any, **fields: Any) -> Any:
    return http.post("/v1/embeddings", json={"input": texts, **fields})


def vectors(answer: Any) -> Vectors:
    assert answer.status_code == 200, answer.text
    return np.array([row["embedding"] for row in answer.json()["data"]], dtype=np.float32)


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return text_lineage(tmp_path)


@pytest.fixture
def http(lineage: Lineage) -> Iterator[TestClient]:
    with running(lineage.path, ServedTexts(ADDRESSES)) as http:
        yield http


def test_a_pinned_openai_client_runs_unchanged_through_two_changes_of_encoder(
    tmp_path: Path,
) -> None:
    answers = through_changes(tmp_path, ADDRESSES, sentences(), TEXTS)
    expected = text_encoders.word_vectors(TEXTS, 0, 10)
    for answer in answers:
        # The maps between these encoders are exact.
        assert_allclose(answer, expected, rtol=1e-2, atol=1e-2)


def test_the_newest_encoder_encodes_and_the_chain_reads(http: TestClient, lineage: Lineage) -> None:
    newest = text_encoders.word_vectors(TEXTS, 1, 12)
    assert_allclose(vectors(embed(http, TEXTS, model="line@v1")), newest, rtol=1e-5, atol=1e-5)
    back = newest @ lineage.chain.matrix(1, 0).float().numpy().T
    answer = embed(http, TEXTS, model="line@v0")
    assert_allclose(vectors(answer), back, rtol=1e-4, atol=1e-4)
    assert answer.json()["evergram"]["computed_from"] == [1, 1]
    assert answer.headers["x-evergram-version"] == "0"


def test_one_text_and_base64(http: TestClient) -> None:
    one = embed(http, TEXTS[0], encoding_format="base64").json()["data"][0]["embedding"]
    row = np.frombuffer(base64.b64decode(one), "<f4")
    assert_allclose(row, vectors(embed(http, TEXTS))[0], rtol=1e-5)


def test_ids_are_read_beside_texts(http: TestClient, lineage: Lineage) -> None:
    ids, stored = lineage.embeddings("object")
    asked = ids.to_pylist()[:2]
    answer = embed(http, asked, input_type="id")
    assert_allclose(vectors(answer), stored[:2].numpy(), rtol=1e-6)
    # The vector of a text is that of its id.
    assert_allclose(vectors(embed(http, sentences()[:2])), stored[:2].numpy(), rtol=1e-4, atol=1e-4)


def test_in_a_lineage_that_records_no_encoder_strings_are_ids_as_ever(tmp_path: Path) -> None:
    lineage_of(tmp_path / "plain", versions=1, text=True)
    with running(tmp_path / "plain", ServedTexts(ADDRESSES)) as http:
        assert embed(http, ["7"]).status_code == 200
        refusal = embed(http, ["7"], input_type="query")
        assert refusal.status_code == 503
        assert "records no encoder of text" in refusal.json()["error"]["message"]


def test_a_service_without_encoders_says_so(lineage: Lineage) -> None:
    with running(lineage.path, None) as http:
        refusal = embed(http, TEXTS)
        assert refusal.status_code == 400
        assert "--encoder" in refusal.json()["error"]["message"]
        assert embed(http, ["text-1"], input_type="id").status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"input": [[1, 2], [3]]}, 400, "arrays of tokens"),
        ({"input": [1, 2]}, 400, "holds whole numbers, and texts are expected"),
        ({"input": ["word1", ""]}, 400, "an empty text at 1"),
        ({"input": ["word1", " \n"]}, 400, "an empty text at 1"),
        ({"input": ["word1", "w" * 51]}, 413, "has 51 characters; at most 50"),
        ({"input": ["word1"] * 9}, 413, "9 inputs are more than the 8"),
        ({"input": ["i" * 1025], "input_type": "id"}, 400, "an id has at most 1024"),
        ({"input": ["word1"], "input_type": "image"}, 400, "input_type"),
        ({"input": {"features": {}}, "input_type": "query"}, 400, "holds no texts"),
        ({"input": ["word1"], "dimensions": 3}, 400, "is not cut to 3"),
    ],
)
def test_what_cannot_be_encoded_is_refused_in_a_sentence(
    lineage: Lineage, body: dict[str, Any], status: int, words: str
) -> None:
    settings = ServiceSettings(max_text=50, max_batch=8)
    with running(lineage.path, ServedTexts(ADDRESSES), settings) as http:
        refusal = http.post("/v1/embeddings", json=body)
    assert refusal.status_code == status, refusal.text
    assert words in refusal.json()["error"]["message"]
    assert refusal.json()["error"]["type"] == "invalid_request_error"


def test_requests_at_once_get_what_each_gets_alone(http: TestClient) -> None:
    texts = sentences(60)
    alone = [vectors(embed(http, [t], model="line@v0"))[0] for t in texts[:5]]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda t: vectors(embed(http, [t], model="line@v0"))[0], texts))
    assert_allclose(together[:5], alone, rtol=1e-5, atol=1e-5)
    whole = vectors(embed(http, texts, model="line@v0"))
    assert_allclose(together, whole, rtol=1e-5, atol=1e-5)


def test_a_text_that_was_asked_for_before_is_not_encoded_again(http: TestClient) -> None:
    first = vectors(embed(http, ["word7 word8", "word7 word8", "word3"]))
    CALLS.clear()
    again = vectors(embed(http, ["word3", "word7 word8"]))
    assert CALLS == []
    assert_allclose(again, first[[2, 0]])


def test_only_what_is_encoded_waits_for_a_worker(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[Workers] = []
    run = Workers.run

    async def counted(workers: Workers, work: Any, done: Any) -> Any:
        handed.append(workers)
        return await run(workers, work, done)

    monkeypatch.setattr(Workers, "run", counted)
    with running(lineage.path, ServedTexts(ADDRESSES)) as http:
        handler = http.app.state.handler  # type: ignore[attr-defined]
        first = vectors(embed(http, TEXTS, input_type="query"))
        assert handed == [handler.text_workers]
        assert_allclose(vectors(embed(http, TEXTS, input_type="query")), first)
        assert handed == [handler.text_workers]


def test_a_replaced_model_closes_strings_and_leaves_ids(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ServedTexts(ADDRESSES)
    with running(lineage.path, texts) as http:
        assert embed(http, TEXTS).status_code == 200
        assert http.get("/readyz").json()["problem"] is None
        monkeypatch.setattr(
            open_function(texts), "_function", lambda rows: text_encoders.word_vectors(rows, 5, 12)
        )
        # Noticed by the canary in the very next batch, and nothing of it is sent.
        refusal = embed(http, ["word55"])
        assert refusal.status_code == 503
        message = refusal.json()["error"]["message"]
        assert "is not the one that the version was published with" in message
        assert "python:" not in message
        # Not even a text that was encoded before, by which of the two nobody knows.
        assert embed(http, TEXTS).status_code == 503
        assert "not the one" in http.get("/readyz").json()["problem"]
        assert "evergram_text_encoder_failed 1.0" in http.get("/metrics").text
        assert embed(http, ["text-1"], input_type="id").status_code == 200
        monkeypatch.undo()
        texts.check()
        assert embed(http, TEXTS).status_code == 200


def open_function(texts: ServedTexts) -> Any:
    [encoder] = [e for e in texts._open.values() if e.dim == 12]
    return encoder


def test_another_encoder_at_the_start_is_refused_from_the_start(lineage: Lineage) -> None:
    with running(lineage.path, ServedTexts([ADDRESSES[2]])) as http:
        assert embed(http, TEXTS).status_code == 503
        assert "none of those that may be opened" in http.get("/readyz").json()["problem"]


def test_a_recorded_function_is_not_run_unless_it_is_named(lineage: Lineage) -> None:
    CALLS.clear()
    with running(lineage.path, ServedTexts(["recorded"])) as http:
        assert embed(http, TEXTS).status_code == 503
    assert CALLS == []


def test_a_search_by_texts_is_one_by_their_vectors(http: TestClient) -> None:
    for version in ("v0", "v1"):
        queries = vectors(embed(http, TEXTS, model=f"line@{version}", input_type="query"))
        asked = {"version": version, "k": 5, "metric": "cosine"}
        by_vector = http.post("/v1/search", json={"vectors": queries.tolist(), **asked}).json()
        by_text = http.post("/v1/search", json={"input": TEXTS, **asked}).json()
        assert by_text["evergram"] == by_vector["evergram"]
        for ours, theirs in zip(by_text["data"], by_vector["data"], strict=True):
            assert [h["id"] for h in ours["hits"]] == [h["id"] for h in theirs["hits"]]
        one = http.post("/v1/search", json={"input": TEXTS[1], **asked}).json()
        alone, together = one["data"][0]["hits"], by_text["data"][1]["hits"]
        assert [h["id"] for h in alone] == [h["id"] for h in together]
        # A product of one row and one of several round apart on some processors.
        assert_allclose([h["score"] for h in alone], [h["score"] for h in together], rtol=1e-6)


def test_the_client_searches_by_texts(http: TestClient) -> None:
    client = Client(ADDRESS, retries=0)
    client._http = http  # type: ignore[assignment]
    hits = client.search_texts(TEXTS, 3, version=0, metric="cosine")
    queries = client.encode(TEXTS, 0, role="query")
    for ours, theirs in zip(hits, client.search(queries, 3, 0, metric="cosine"), strict=True):
        assert ours.ids.equals(theirs.ids)
        assert_allclose(ours.scores, theirs.scores, rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"input": "word1", "id": "text-1"}, 400, "give one of 'input', 'vector'"),
        ({"input": ["word1", 3]}, 400, "ids are searched by with 'id'"),
        ({"input": ["word1", ""]}, 400, "an empty text at 1"),
        ({"input": ["word1", " \n"]}, 400, "an empty text at 1"),
        ({"input": "w" * 51}, 413, "has 51 characters; at most 50"),
        ({"input": ["word1"] * 9}, 413, "9 inputs are more than the 8"),
        ({"input": []}, 400, "is a text or a list of texts"),
        ({"vector": [1.0] * 10, "input_type": "query"}, 400, "'input_type' is for texts"),
        ({"input": "word1", "input_type": "id"}, 400, "input_type"),
    ],
)
def test_a_search_by_what_cannot_be_encoded_is_refused_in_a_sentence(
    lineage: Lineage, body: dict[str, Any], status: int, words: str
) -> None:
    settings = ServiceSettings(max_text=50, max_batch=8)
    with running(lineage.path, ServedTexts(ADDRESSES), settings) as http:
        refusal = http.post("/v1/search", json=body)
    assert refusal.status_code == status, refusal.text
    assert words in refusal.json()["error"]["message"]


def test_a_search_by_texts_wants_a_lineage_of_texts(tmp_path: Path) -> None:
    lineage_of(tmp_path / "plain", versions=1, text=True)
    with running(tmp_path / "plain", ServedTexts(ADDRESSES)) as http:
        refusal = http.post("/v1/search", json={"input": "7"})
    assert refusal.status_code == 400
    assert "records no encoder of text" in refusal.json()["error"]["message"]


@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize("character", ["a", "漢", "😀"])
def test_the_limit_of_a_text_is_one_of_characters_in_any_script(
    http: TestClient, character: str, escaped: bool
) -> None:
    """A character takes up to twelve bytes in JSON."""
    longest = ServiceSettings().max_text
    headers = {"Content-Type": "application/json"}
    for count, status in ((longest, 200), (longest + 1, 413)):
        for sent in (character * count, [character * count]):
            body = json.dumps({"input": sent}, ensure_ascii=escaped).encode()
            answer = http.post("/v1/embeddings", content=body, headers=headers)
            assert answer.status_code == status, answer.text[:200]
            assert status == 200 or f"at most {longest}" in answer.json()["error"]["message"]
