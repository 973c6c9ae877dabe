"""An encoder that hangs or fails closes strings, and neither the reading of ids nor other texts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.support.running_service import ADDRESS
from tests.support.text_encoders import (
    ADDRESSES,
    HERE,
    encoded,
    sentences,
    text_lineage,
    word_vectors,
)

from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.align_settings import AlignSettings
from evergram.serving.app import create_app
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.serving.texts import served_texts as module
from evergram.serving.texts.documents import Documents
from evergram.serving.texts.served_texts import ServedTexts

GAUGE = "evergram_text_encoder_failed 1.0"


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return text_lineage(tmp_path)


class Gate:
    """A function that encodes once it is let go."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, texts: list[str]) -> Any:
        self.entered.set()
        assert self.go.wait(60)
        return word_vectors(texts, 1, 12)


def function_of(texts: ServedTexts) -> Any:
    [encoder] = [e for e in texts._open.values() if e.address == ADDRESSES[1]]
    return encoder


@contextmanager
def serving(
    lineage: Lineage,
    function: Any,
    settings: ServiceSettings | None = None,
    documents: Documents | None = None,
    limit: float = 30.0,
) -> Iterator[tuple[TestClient, ServedTexts]]:
    """Serve a lineage whose encoder is replaced by a function once it has been opened."""
    texts = ServedTexts(ADDRESSES, documents=documents, limit=limit)
    app = create_app(Service.open(lineage.path, texts=texts), settings)
    with TestClient(app, base_url=ADDRESS) as http:
        function_of(texts)._function = function
        yield http, texts


def embed(http: TestClient, text: str, **fields: Any) -> Any:
    return http.post("/v1/embeddings", json={"input": [text], **fields})


def test_ids_are_read_and_kept_texts_answered_while_the_encoder_hangs(lineage: Lineage) -> None:
    gate = Gate()
    settings = ServiceSettings(workers=1, max_waiting=1)
    with serving(lineage, word_vectors_of_second, settings) as (http, texts):
        assert embed(http, "word9").status_code == 200
        function_of(texts)._function = gate
        handler: Any = http.app.state.handler  # type: ignore[attr-defined]
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(embed, http, "word1")]
            assert gate.entered.wait(30)
            waiting.append(pool.submit(embed, http, "word2"))
            while handler.text_workers.busy < 2:
                threading.Event().wait(0.001)
            for _ in range(3):
                assert embed(http, "text-1", input_type="id").status_code == 200
            assert http.get("/v1/versions").status_code == 200
            assert embed(http, "word9").status_code == 200
            assert "evergram_requests_working 2.0" in http.get("/metrics").text
            # No more texts than may wait, as for all other requests.
            refusal = embed(http, "word3")
            assert (refusal.status_code, refusal.headers["retry-after"]) == (503, "1")
            assert refusal.json()["error"]["code"] == "busy"
            gate.go.set()
            assert [future.result(60).status_code for future in waiting] == [200, 200]
        assert handler.text_workers.busy == 0


def word_vectors_of_second(texts: list[str]) -> Any:
    return word_vectors(texts, 1, 12)


def test_texts_that_wait_leave_connections_to_others(lineage: Lineage) -> None:
    settings = ServiceSettings(workers=1, max_connections=2)
    gate = Gate()
    with serving(lineage, gate, settings) as (http, _), ThreadPoolExecutor(2) as pool:
        handler: Any = http.app.state.handler  # type: ignore[attr-defined]
        waiting = [pool.submit(embed, http, f"word{i}") for i in range(2)]
        while handler.text_workers.busy < 2:
            threading.Event().wait(0.001)
        assert embed(http, "word3").status_code == 503
        gate.go.set()
        assert [future.result(60).status_code for future in waiting] == [200, 200]


def test_a_hanging_encoder_is_named_and_strings_are_refused_at_once(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK", 0.001)
    gate = Gate()
    with (
        serving(lineage, gate, limit=0.05) as (http, texts),
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(embed, http, "word1")
        assert gate.entered.wait(30)
        while texts.problem is None:
            threading.Event().wait(0.001)
        assert "does not answer" in http.get("/readyz").json()["problem"]
        assert GAUGE in http.get("/metrics").text
        refusal = embed(http, "word2")
        assert (refusal.status_code, refusal.headers["retry-after"]) == (503, "1")
        assert "does not answer" in refusal.json()["error"]["message"]
        gate.go.set()
        assert first.result(60).status_code == 503
        # A busy machine must not make the next call one that hangs.
        texts._encoders[1]._limit = 60
        texts.check()
        assert embed(http, "word2").status_code == 200


def nothing_finite(texts: list[str]) -> Any:
    return np.full((len(texts), 12), np.nan)


def down(texts: list[str]) -> Any:
    raise OSError("http://host:81 is down")


@pytest.mark.parametrize("function", [nothing_finite, down])
def test_a_failing_encoder_is_named_and_its_particulars_are_only_logged(
    lineage: Lineage, function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(lineage, function) as (http, texts):
        refusal = embed(http, "word1")
        assert refusal.status_code == 503
        message = refusal.json()["error"]["message"]
        assert message.startswith("The encoder of version 1 fails, so strings are not encoded")
        assert http.get("/readyz").json()["problem"] == message
        assert GAUGE in http.get("/metrics").text
        assert embed(http, "text-1", input_type="id").status_code == 200
        assert HERE in caplog.text
        function_of(texts)._function = word_vectors_of_second
        texts.check()
        assert embed(http, "word1").status_code == 200


def odd(texts: list[str]) -> Any:
    if any("word7" in text for text in texts):
        raise RuntimeError("token 7")
    vectors = word_vectors(texts, 1, 12)
    vectors[["word8" in text for text in texts]] = np.inf
    return vectors


@pytest.mark.parametrize("route", ["embeddings", "search"])
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["word1", "word8"], "gives no finite vector for the text at 1 of 'input'; leave it out."),
        (["word7"], "cannot encode the text at 0 of 'input'; leave it out."),
        (["word1", "word7"], "cannot encode one of the texts of 'input'; leave it out."),
    ],
)
def test_a_text_that_cannot_be_encoded_is_refused_and_others_are_not(
    lineage: Lineage, route: str, asked: list[str], words: str
) -> None:
    with serving(lineage, odd) as (http, texts):
        refusal = http.post(f"/v1/{route}", json={"input": asked})
        assert refusal.status_code == 400
        error = refusal.json()["error"]
        assert error["message"] == f"The encoder of version 1 {words}"
        assert (error["code"], error["param"]) == ("data", "input")
        assert texts.problem is None
        assert embed(http, "word1").status_code == 200


@pytest.mark.parametrize(
    ("function", "status", "words"),
    [
        (nothing_finite, 503, "version 1 fails"),
        (odd, 409, "gives no finite vector for the text of a hit"),
    ],
)
def test_a_search_that_reranks_says_whose_failure_it_is(
    tmp_path: Path, function: Any, status: int, words: str
) -> None:
    rows = "\n".join(f"text-{i},word8" for i in range(400))
    (tmp_path / "texts.csv").write_text(f"id,text\n{rows}\n")
    # Few texts have vectors of version 1, so that most hits must be encoded.
    moving = Lineage.create(tmp_path / "moving", "moving")
    new = encoded(tmp_path, ADDRESSES[1], texts=sentences()[:150])
    align(encoded(tmp_path, ADDRESSES[0]), new, moving, AlignSettings(), promote=False)
    documents = Documents(tmp_path / "texts.csv")
    with serving(moving, function, documents=documents) as (http, _):
        queries = word_vectors(["word1 word2"], 1, 12).tolist()
        asked = {"vectors": queries, "version": 1, "k": 5, "rerank": 40}
        refusal = http.post("/v1/search", json=asked)
    assert refusal.status_code == status, refusal.text
    message = refusal.json()["error"]["message"]
    assert words in message
    assert "word8" not in message
