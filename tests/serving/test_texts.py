"""Strings sent to the service: encoded at the pinned version, cut and refused; their encoders
checked and replaced; and the vectors kept of them."""

from __future__ import annotations

import gc
import json
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from starlette.testclient import TestClient
from tests.support.command import Command
from tests.support.lineages import lineage_of
from tests.support.running_service import http_of, refused, server, until
from tests.support.text_clients import through_changes
from tests.support.text_encoders import (
    ADDRESSES,
    CALLS,
    HERE,
    encoded,
    first,
    sentences,
    text_lineage,
    word_vectors,
)

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.migration.encoded_files import Texts, encode_file
from evergram.releasing.align import AlignSettings, align
from evergram.releasing.past_file import import_embeddings
from evergram.serving import texts as module
from evergram.serving.app import create_app
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.serving.texts import (
    BATCH,
    OVERHEAD,
    Documents,
    EncoderWaitError,
    ServedTexts,
    TextEncoderError,
    VectorCache,
)
from evergram.texts.addresses import open_text_encoder
from evergram.texts.record import parse_record, record_of
from evergram.texts.text_encoder import Vectors
from evergram.vector_files.open_embeddings import (
    FINGERPRINT,
    TEXT_ENCODER,
    open_embeddings,
    write_vectors,
)

TEXTS = ["word1 word2 word3", "word4 word9"]


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return text_lineage(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def http(lineage: Lineage) -> Iterator[TestClient]:
    with running(lineage.path, ServedTexts(ADDRESSES)) as http:
        yield http


def running(
    folder: Path, texts: ServedTexts | None, settings: ServiceSettings | None = None
) -> AbstractContextManager[TestClient]:
    return http_of(folder, settings=settings, texts=texts)


def embed(http: TestClient, texts: Any, **fields: Any) -> Any:
    return http.post("/v1/embeddings", json={"input": texts, **fields})


def vectors(answer: Any) -> Vectors:
    assert answer.status_code == 200, answer.text
    return np.array([row["embedding"] for row in answer.json()["data"]], dtype=np.float32)


def test_a_pinned_openai_client_runs_unchanged_through_two_changes_of_encoder(
    tmp_path: Path,
) -> None:
    answers = through_changes(tmp_path, ADDRESSES, sentences(), TEXTS)
    expected = word_vectors(TEXTS, 0, 10)
    for answer in answers:
        # The maps between these encoders are exact.
        assert_allclose(answer, expected, rtol=1e-2, atol=1e-2)


def test_the_newest_encoder_encodes_and_the_chain_reads(http: TestClient, lineage: Lineage) -> None:
    newest = word_vectors(TEXTS, 1, 12)
    assert_allclose(vectors(embed(http, TEXTS, model="line@v1")), newest, rtol=1e-5, atol=1e-5)
    back = newest @ lineage.chain.matrix(1, 0).float().numpy().T
    answer = embed(http, TEXTS, model="line@v0")
    assert_allclose(vectors(answer), back, rtol=1e-4, atol=1e-4)
    assert answer.json()["evergram"]["computed_from"] == [1, 1]
    assert answer.headers["x-evergram-version"] == "0"
    ids, stored = lineage.embeddings("object")
    answer = embed(http, ids.to_pylist()[:2], input_type="id")
    assert_allclose(vectors(answer), stored[:2].numpy(), rtol=1e-6)
    # The vector of a text is that of its id.
    assert_allclose(vectors(embed(http, sentences()[:2])), stored[:2].numpy(), rtol=1e-4, atol=1e-4)


def test_without_the_recorded_encoder_strings_are_ids_or_refused(
    lineage: Lineage, tmp_path: Path
) -> None:
    lineage_of(tmp_path / "plain", versions=1, text=True)
    with running(tmp_path / "plain", ServedTexts(ADDRESSES)) as http:
        assert embed(http, ["7"]).status_code == 200
        refused(embed(http, ["7"], input_type="query"), 503, "records no text encoder")
        assert http.post("/v1/search", json={"input": "7"}).status_code == 400
    for address, words in (
        (ADDRESSES[2], "is not allowed by --encoder"),
        ("recorded", "is not allowed by --encoder"),
        (f"{HERE}:absent", "cannot be opened"),
    ):
        CALLS.clear()
        with running(lineage.path, ServedTexts([address])) as http:
            assert embed(http, TEXTS).status_code == 503
            assert words in http.get("/readyz").json()["problem"]
        assert address != "recorded" or CALLS == []
    with running(lineage.path, None) as http:
        refused(embed(http, TEXTS), 400, "--encoder")
        assert embed(http, ["text-1"], input_type="id").status_code == 200


@pytest.fixture(scope="module")
def limited(lineage: Lineage) -> Iterator[TestClient]:
    settings = ServiceSettings(max_text=50, max_batch=8)
    with running(lineage.path, ServedTexts(ADDRESSES), settings) as http:
        yield http


def test_what_cannot_be_encoded_is_refused(limited: TestClient) -> None:
    body: dict[str, Any]
    for body, status, words in (
        ({"input": [[1, 2], [3]]}, 400, "arrays of tokens"),
        ({"input": [1, 2]}, 400, "has integers, not texts"),
        ({"input": ["word1", " \n"]}, 400, "an empty text at 1"),
        ({"input": ["word1", "w" * 51]}, 413, "51 characters, more than 50"),
        ({"input": ["word1"] * 9}, 413, "9 inputs exceed the limit of 8 "),
        ({"input": ["i" * 1025], "input_type": "id"}, 400, "at most 1024"),
        ({"input": ["word1"], "input_type": "image"}, 400, "input_type"),
        ({"input": ["word1"], "side": "object"}, 400, "input_type"),
        ({"input": "word1", "id": "text-1"}, 400, "'input', 'vector'"),
        ({"k": 3, "input": ["word1", 3]}, 400, "'id'"),
        ({"k": 3, "input": ["word1", ""]}, 400, "an empty text at 1"),
        ({"k": 3, "input": "w" * 51}, 413, "51 characters, more than 50"),
        ({"k": 3, "input": ["word1"] * 9}, 413, "9 inputs exceed the limit of 8 "),
        ({"k": 3, "input": []}, 400, "a list of texts"),
        ({"vector": [1.0] * 10, "input_type": "query"}, 400, "'input_type' is for texts"),
        ({"k": 3, "input": "word1", "input_type": "id"}, 400, "input_type"),
        ({"vector": [1.0] * 10, "version": 0, "k": 3, "rerank": 4}, 400, "older than production"),
    ):
        route = "search" if body.keys() & {"k", "id", "vector"} else "embeddings"
        refusal = limited.post(f"/v1/{route}", json=body)
        refused(refusal, status, words)
        assert refusal.json()["error"]["type"] == "invalid_request_error"


def test_requests_at_once_get_what_each_gets_alone(lineage: Lineage) -> None:
    with running(lineage.path, ServedTexts(ADDRESSES)) as http, ThreadPoolExecutor(8) as pool:
        texts = sentences(30)
        together = list(pool.map(lambda t: vectors(embed(http, [t]))[0], texts))
    assert_allclose(together, word_vectors(texts, 1, 12), rtol=1e-5, atol=1e-5)


def test_a_replaced_model_closes_strings_and_leaves_ids(lineage: Lineage) -> None:
    with serving(lineage, word_vectors_of_second) as (http, texts):
        assert embed(http, TEXTS).status_code == 200
        assert http.get("/readyz").json()["problem"] is None
        function_of(texts)._function = lambda rows: word_vectors(rows, 5, 12)
        # The canary notices it in the very next batch, and nothing of it is sent; nor are texts
        # that were encoded before, by which of the two nobody knows.
        for asked in (["word55"], TEXTS):
            refusal = embed(http, asked)
            assert refusal.status_code == 503
            message = refusal.json()["error"]["message"]
            assert "is not the one that the version was published with" in message
            assert "python:" not in message
        assert http.get("/readyz").json()["problem"] == message
        assert GAUGE in http.get("/metrics").text
        assert embed(http, ["text-1"], input_type="id").status_code == 200
        recovered(http, texts)


def test_a_search_by_texts_in_any_script_is_one_by_their_vectors(http: TestClient) -> None:
    for version in ("v0", "v1"):
        queries = vectors(embed(http, TEXTS, model=f"line@{version}", input_type="query"))
        asked = {"version": version, "k": 5, "metric": "cosine"}
        by_vector = http.post("/v1/search", json={"vectors": queries.tolist(), **asked}).json()
        by_text = http.post("/v1/search", json={"input": TEXTS, **asked}).json()
        one = http.post("/v1/search", json={"input": TEXTS[1], **asked}).json()
        assert by_text["evergram"] == by_vector["evergram"]
        expected = [*by_vector["data"], by_vector["data"][1]]
        for ours, theirs in zip([*by_text["data"], *one["data"]], expected, strict=True):
            assert [h["id"] for h in ours["hits"]] == [h["id"] for h in theirs["hits"]]
    longest = ServiceSettings().max_text
    headers = {"Content-Type": "application/json"}
    for character, escaped in (("漢", False), ("😀", True)):
        for count, status in ((longest, 200), (longest + 1, 413)):
            body = json.dumps({"input": [character * count]}, ensure_ascii=escaped).encode()
            answer = http.post("/v1/embeddings", content=body, headers=headers)
            assert answer.status_code == status, answer.text[:200]


GAUGE = "evergram_text_encoder_failed 1.0"


def recovered(http: TestClient, texts: ServedTexts) -> None:
    """Mend the encoder, and wait until the service has noticed it by itself."""
    function_of(texts)._function = word_vectors_of_second
    texts._every = 0.0
    until(lambda: texts.problem is None)
    assert embed(http, ["word8 word1"]).status_code == 200


class Gate:
    """A function that encodes once it is let go."""

    def __init__(self, seed: int = 1, dim: int = 12) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self._made = seed, dim

    def __call__(self, texts: list[str]) -> Any:
        self.entered.set()
        assert self.go.wait(60)
        return word_vectors(texts, *self._made)


def function_of(texts: ServedTexts) -> Any:
    [encoder] = [e for e in texts._open.values() if e.address == ADDRESSES[1]]
    return encoder


@contextmanager
def serving(
    lineage: Lineage,
    function: Any,
    settings: ServiceSettings | None = None,
    documents: Documents | None = None,
) -> Iterator[tuple[TestClient, ServedTexts]]:
    """Serve a lineage whose encoder is replaced by a function once it has been opened."""
    texts = ServedTexts(ADDRESSES, documents=documents)
    with running(lineage.path, texts, settings) as http:
        function_of(texts)._function = function
        yield http, texts


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
            until(lambda: handler.text_workers.busy == 2)
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


def test_texts_whose_turn_does_not_come_are_refused_and_an_encoder_that_hangs_is_named(
    lineage: Lineage,
) -> None:
    gate = Gate()
    with serving(lineage, gate) as (http, texts), ThreadPoolExecutor(1) as pool:
        first = pool.submit(embed, http, "word1")
        assert gate.entered.wait(30)
        function = function_of(texts)
        function.limit, began = 0.01, function._started
        function._started = math.inf  # as of a call that has just begun
        refusal = embed(http, "word2")
        assert (refusal.status_code, refusal.headers["retry-after"]) == (503, "1")
        assert "busy with other texts" in refusal.json()["error"]["message"]
        # Which says nothing about the encoder, nor does a check whose turn does not come.
        texts.check()
        assert texts.problem is None
        # Not so where it has waited for the same call for too long.
        function._started = began
        assert embed(http, "word2").status_code == 503
        assert "fails" in http.get("/readyz").json()["problem"]
        assert GAUGE in http.get("/metrics").text
        assert embed(http, "text-1", input_type="id").status_code == 200
        assert http.get("/healthz").status_code == 200
        function.limit = 60.0
        gate.go.set()
        assert first.result(60).status_code == 503
        recovered(http, texts)


def test_a_failing_encoder_is_named_and_not_asked_again_until_a_check_passes(
    lineage: Lineage, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[list[str]] = []

    def down(texts: list[str]) -> Any:
        calls.append(texts)
        raise OSError("http://host:81 is down")

    with serving(lineage, down) as (http, texts):
        refusal = embed(http, "word1")
        assert refusal.status_code == 503
        message, asked = refusal.json()["error"]["message"], len(calls)
        assert message.startswith("The encoder of version 1 fails, so strings are not encoded")
        assert http.get("/readyz").json()["problem"] == message
        assert GAUGE in http.get("/metrics").text
        assert embed(http, "word2").status_code == 503
        assert len(calls) == asked
        assert embed(http, "text-1", input_type="id").status_code == 200
        assert caplog.text.count("so strings are not encoded") == 1
        assert HERE in caplog.text
        check, failures = texts.check, [RuntimeError("once")]

        def failing() -> None:
            if failures:
                raise failures.pop()
            check()

        texts.check = failing  # type: ignore[method-assign]
        recovered(http, texts)
        assert "Checking the text encoders failed" in caplog.text


def odd(texts: list[str]) -> Any:
    if any("word7" in text for text in texts):
        raise RuntimeError("token 7")
    vectors = word_vectors(texts, 1, 12)
    vectors[["word8" in text for text in texts]] = np.inf
    return vectors


def test_a_text_that_cannot_be_encoded_is_refused_and_others_are_not(lineage: Lineage) -> None:
    with serving(lineage, odd) as (http, texts):
        for route, asked, words in (
            ("embeddings", ["word1", "word8"], "finite vector for the text at 1 of 'input'"),
            ("embeddings", ["word7"], "cannot encode the text at 0 of 'input'"),
            ("search", ["word1", "word7"], "cannot encode one of the texts of 'input'"),
        ):
            refusal = http.post(f"/v1/{route}", json={"input": asked})
            error = refusal.json()["error"]
            assert (refusal.status_code, error["code"], error["param"]) == (400, "data", "input")
            assert words in error["message"]
            assert texts.problem is None
            assert embed(http, "word1").status_code == 200


def test_a_search_that_reranks_says_whose_failure_it_is(tmp_path: Path) -> None:
    rows = "\n".join(f"text-{i},word8" for i in range(400))
    (tmp_path / "texts.csv").write_text(f"id,text\n{rows}\n")
    # Few texts have vectors of version 1, so that most hits must be encoded.
    moving = Lineage.create(tmp_path / "moving", "moving")
    new = encoded(tmp_path, ADDRESSES[1], texts=sentences()[:150])
    align(encoded(tmp_path, ADDRESSES[0]), new, moving, AlignSettings(), promote=False)
    queries = word_vectors(["word1 word2"], 1, 12).tolist()
    asked = {"vectors": queries, "version": 1, "k": 5, "rerank": 40}
    for function, status, words in (
        (lambda texts: np.full((len(texts), 12), np.nan), 503, "version 1 fails"),
        (odd, 409, "gives no finite vector for the text of a hit"),
    ):
        documents = Documents(tmp_path / "texts.csv")
        with serving(moving, function, documents=documents) as (http, _):
            refusal = http.post("/v1/search", json=asked)
        refused(refusal, status, words)
        assert "word8" not in refusal.text


# Of version 0; version 1 declares 6 alone.
CUTS = ((4, 8), (6,))


@pytest.fixture(scope="module")
def cut_lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    folder = tmp_path_factory.mktemp("cuts")
    lineage = Lineage.create(folder / "line", "line")
    rows = sentences()
    texts = Texts(pa.array([f"text-{i}" for i in range(len(rows))]), rows)
    files = []
    for number, (address, cuts) in enumerate(zip(ADDRESSES[:2], CUTS, strict=True)):
        path = folder / f"{number}.parquet"
        encode_file(texts, open_text_encoder(address), path, matryoshka=cuts)
        files.append(open_embeddings(path))
    align(files[0], files[1], lineage, AlignSettings())
    return lineage


@pytest.fixture(scope="module")
def address(cut_lineage: Lineage) -> Iterator[str]:
    texts = ServedTexts(ADDRESSES)
    with server(create_app(Service(cut_lineage.path, texts=texts))) as url:
        yield url


def unit(vectors: np.ndarray) -> np.ndarray:
    lengths = np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1))
    return np.asarray(vectors / lengths[:, None])


def test_an_openai_client_gets_the_first_coordinates_with_length_1(
    address: str, cut_lineage: Lineage
) -> None:
    import openai

    newest = word_vectors(TEXTS, 1, 12)
    # A past version is cut after the way back: its own coordinates, by its own record.
    back = newest @ cut_lineage.chain.matrix(1, 0).float().numpy().T
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:
        for model, dims, expected in (
            ("line@v1", 6, unit(newest[:, :6])),
            ("line@v0", 4, unit(back[:, :4])),
            ("line@v0", 8, unit(back[:, :8])),
            ("line@v0", 10, back),
        ):
            answer = client.embeddings.create(model=model, input=TEXTS, dimensions=dims)
            assert_allclose([d.embedding for d in answer.data], expected, rtol=1e-4, atol=1e-4)
        for model, dims in (("line@v0", 6), ("line@v1", 4), ("line@v0", 12)):
            with pytest.raises(openai.BadRequestError) as error:
                client.embeddings.create(model=model, input=TEXTS, dimensions=dims)
            assert (error.value.code, error.value.param) == ("dimensions", "dimensions")
            assert error.value.type == "invalid_request_error"


def test_a_file_of_cut_vectors_carries_no_fingerprint(
    cut_lineage: Lineage, tmp_path: Path, evergram: Command
) -> None:
    out = tmp_path / "v0.parquet"
    export = ("vectors", "export", cut_lineage.path, out, "--side", "object", "--as", 0)
    facts = evergram.json(*export, "--dimensions", 8)
    assert (facts["dim"], facts["rows"], facts["as"]) == (8, 400, 0)
    table = pq.read_table(out)
    _, whole = cut_lineage.view(0).embeddings("object")
    rows = np.array(table["vector"].to_pylist())
    assert_allclose(rows, unit(whole.numpy()[:, :8]), atol=1e-6)
    assert not [key for key in table.schema.metadata or {} if key.startswith(b"evergram")]
    assert "cannot be truncated to 5" in evergram.refused(*export, "--dimensions", 5, "--force")


def test_a_later_version_with_an_encoder_changes_nothing_for_old_clients(tmp_path: Path) -> None:
    new = encoded(tmp_path, ADDRESSES[1])
    [(ids, rows)] = new.blocks()
    write_vectors(tmp_path / "old.parquet", [(ids, rows[:, :10])])
    lineage = Lineage.create(tmp_path / "line", "line")
    align(open_embeddings(tmp_path / "old.parquet"), new, lineage)
    assert lineage.manifest(1).text_encoder is not None
    with running(lineage.path, ServedTexts(ADDRESSES)) as http:
        # Strings are ids, as the first version records no encoder, unless the request says texts.
        stored = vectors(embed(http, ["text-0", "text-1"]))
        assert_allclose(stored, rows[:2], rtol=1e-6)
        assert embed(http, TEXTS).status_code == 404
        texts = vectors(embed(http, sentences()[:2], input_type="document"))
        assert_allclose(texts, stored, rtol=1e-4, atol=1e-4)


FIRST, SECOND, THIRD = (record_of(open_text_encoder(address)) for address in ADDRESSES)


def test_texts_are_encoded_in_parts_and_what_was_done_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("\n".join(["id,text", *(f"{i},word{i % 50} word{i % 7}" for i in range(200))]))
    documents = Documents(path)
    path.unlink()
    for ids in (pa.array([3, 0]), pa.array(["3", "0"])):  # known, so that no file is read
        assert documents.texts_of(ids) == ["word3 word3", "word0 word0"]
    with pytest.raises(DataError, match="no file"):
        documents.texts_of(pa.array([999]))
    CALLS.clear()

    def until_the_third(texts: list[str]) -> np.ndarray:
        if len(CALLS) == 2:
            raise DataError("out of time")
        return first(texts)

    kept = documents.kept(1, "space", 10, until_the_third)
    with pytest.raises(DataError, match="out of time"):
        kept.of(pa.array(range(200)))
    assert [len(call) for call in CALLS] == [BATCH, BATCH]
    assert documents.counts() == {1: 2 * BATCH}
    assert documents.kept(1, "space", 10, first) is kept
    assert len(documents.kept(1, "another", 10, first)) == 0


def lineage_with(production: int, *records: Any) -> Any:
    """A lineage of versions 0, 1, … with these encoders."""
    versions = [SimpleNamespace(version=n, text_encoder=r) for n, r in enumerate(records)]
    return SimpleNamespace(production=production, versions=versions)


def test_an_encoder_is_freed_after_its_last_call() -> None:
    texts, gate = ServedTexts(ADDRESSES), Gate(0, 10)
    texts.load(lineage_with(0, FIRST))
    [encoder] = texts._open.values()
    encoder._function = gate  # type: ignore[attr-defined]
    model = weakref.ref(encoder)
    del encoder
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(texts.encode, 0, TEXTS, "document")
        assert gate.entered.wait(60)
        texts.load(lineage_with(1, FIRST, SECOND))
        texts.load(lineage_with(2, FIRST, SECOND, THIRD))
        gate.go.set()
        assert len(under_way.result(60)) == len(TEXTS)
    gc.collect()
    assert model() is None
    assert len(texts._open) == 2


def test_a_number_that_goes_to_another_version_is_encoded_by_its_encoder() -> None:
    texts = ServedTexts(ADDRESSES)
    texts.load(lineage_with(1, FIRST, SECOND))
    texts.encode(1, TEXTS, "document")
    texts.load(lineage_with(0, FIRST))
    texts.load(lineage_with(1, FIRST, THIRD))
    with pytest.raises(EncoderWaitError):
        texts.encode(1, TEXTS, "document", wait=False)
    assert_allclose(texts.encode(1, TEXTS, "document"), word_vectors(TEXTS, 2, 11), rtol=1e-5)
    # A request under way may be of the lineage before.
    for wait in (True, False):
        with pytest.raises(TextEncoderError, match="was replaced"):
            texts.encode(1, TEXTS, "document", SECOND, wait=wait)
    texts.load(lineage_with(1, FIRST, None))
    with pytest.raises(TextEncoderError, match="records no text encoder"):
        texts.encode(1, TEXTS, "document")


def loaded(lineage: Lineage, *addresses: str, **options: Any) -> ServedTexts:
    texts = ServedTexts(addresses or ADDRESSES, **options)
    texts.load(lineage)
    return texts


def test_each_version_has_its_encoder_and_only_new_texts_are_encoded(lineage: Lineage) -> None:
    repeated = [*TEXTS, TEXTS[0]]
    texts = loaded(lineage, *reversed(ADDRESSES))
    assert texts.problem is None
    assert_allclose(texts.encode(1, repeated, "document"), word_vectors(repeated, 1, 12), rtol=1e-5)
    # Version 0 is read through the chain: its encoder is not opened.
    with pytest.raises(TextEncoderError, match="records no text encoder"):
        texts.encode(0, repeated, "document")
    CALLS.clear()
    more = ["word9", *repeated, "word4"]
    assert_allclose(texts.encode(1, more, "document"), word_vectors(more, 1, 12), rtol=1e-5)
    assert CALLS[0][:2] == ["word9", "word4"]
    # A query is not the document of the same words.
    texts.encode(1, ["word9"], "query")
    assert len(CALLS) == 2
    texts.close()


def test_the_encoder_before_stays_after_a_roll_back_and_forth(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "line", "line")
    import_embeddings(encoded(tmp_path, ADDRESSES[0]), lineage)
    lineage.label("stable", 0)
    align(0, encoded(tmp_path, ADDRESSES[1]), lineage, promote=False)
    texts = loaded(lineage)
    # A request under way may still be of the version before.
    lineage.promote(1)
    texts.load(lineage)
    assert len(texts.encode(0, TEXTS, "document")) == 2
    texts.load(lineage)
    with pytest.raises(TextEncoderError):
        texts.encode(0, TEXTS, "document")
    assert len(texts.encode(1, TEXTS, "document")) == 2


def test_checks_are_due_every_so_often_and_sooner_after_a_failure(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    good, bad = loaded(lineage), loaded(lineage, ADDRESSES[2])
    due = []
    for seconds in (1, 11, 301):
        now[0] = 1000.0 + seconds
        due.append((good.is_due(), bad.is_due()))
    assert due == [(False, False), (False, True), (True, True)]
    good.check()
    assert not good.is_due()


def test_kept_vectors_follow_the_checks_of_their_encoder(
    lineage: Lineage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, path = tmp_path / "kept", tmp_path / "texts.csv"
    path.write_text("id,text\ntext-1,word1 word2\ntext-2,word3\n")
    documents = Documents(path, folder)
    texts, manifest = loaded(lineage, documents=documents), lineage.manifest(1)
    encode = partial(texts.encode, 1, role="document")
    space = 1, manifest.fingerprint, manifest.dim
    kept = documents.kept(*space, encode, manifest.text_encoder)
    before = kept.of(pa.array(["text-1"]))
    assert not folder.exists()
    texts.check()
    (saved,) = folder.iterdir()
    provenance = open_embeddings(saved).provenance
    assert parse_record(provenance[TEXT_ENCODER], "") == manifest.text_encoder
    assert provenance[FINGERPRINT] == manifest.fingerprint
    kept.of(pa.array(["text-2"]))
    # The encoder turns out to be another: what it made since the last check goes.
    texts._encoders[1]._failed()
    assert kept.rows()[0].to_pylist() == ["text-1"]
    texts.check()
    kept.of(pa.array(["text-2"]))
    texts.close()
    CALLS.clear()
    again = Documents(path, folder).kept(*space, first)
    assert_array_equal(again.of(pa.array(["text-1"])), before)
    assert (sorted(again.rows()[0].to_pylist()), list(CALLS)) == (["text-1", "text-2"], [])
    # A file under the name of another version is still of its own, and a damaged one of none.
    saved.rename(folder / "other-a.parquet")
    (folder / "other-b.parquet").write_bytes(b"PAR1")
    assert len(Documents(path, folder).kept(1, "other", 12, first)) == 0
    # Where they cannot be saved, nothing ends.
    nowhere = Documents(path, path)
    nowhere.kept(1, "space", 10, first).of(pa.array(["text-1"]))
    nowhere.save(1, 1)
    for words in ("does not have version other", "other-b.parquet", "cannot be saved"):
        assert words in caplog.text


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=40), st.integers(0, 4))
def test_a_cache_is_a_dictionary_of_the_last_few(steps: list[tuple[bool, int]], room: int) -> None:
    size = 16 + OVERHEAD
    cache, expected = VectorCache(room * size), OrderedDict[int, np.ndarray]()
    rows = np.repeat(np.arange(7, dtype=np.float32)[:, None], 4, axis=1)
    for write, key in steps:
        if write and room:
            expected.pop(key, None)
            expected[key] = rows[key]
            while len(expected) > room:
                expected.popitem(last=False)
        elif key in expected:
            expected.move_to_end(key)
        if write:
            cache.put(key, rows[key], 0)
        else:
            held = cache.get(key)
            assert (held is None) == (key not in expected)
            # A row does not keep its batch in memory.
            assert held is None or (held.base is None and (held == rows[key]).all())
        assert len(cache) == len(expected)
        assert cache.held == len(expected) * size <= cache.most
