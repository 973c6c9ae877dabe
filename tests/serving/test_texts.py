"""Strings sent to the service: encoded at the pinned version, cut, and refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose
from starlette.testclient import TestClient
from tests.support.command import Command
from tests.support.lineages import lineage_of
from tests.support.running_service import client_of, http_of, server
from tests.support.text_clients import through_changes
from tests.support.text_encoders import (
    ADDRESSES,
    CALLS,
    HERE,
    encoded,
    sentences,
    text_lineage,
    word_vectors,
)

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import AlignSettings, align
from evergram.releasing.files.encode_file import Texts, encode_file
from evergram.retrieval.reader import Reader
from evergram.serving import text_encoders as module
from evergram.serving.app import create_app
from evergram.serving.client import Client
from evergram.serving.documents import Documents
from evergram.serving.http.workers import Workers
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.serving.text_encoders import ServedTexts
from evergram.texts.addresses import open_text_encoder
from evergram.texts.text_encoder import Vectors
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.writers import write_vectors

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


def test_ids_are_read_beside_texts(http: TestClient, lineage: Lineage) -> None:
    ids, stored = lineage.embeddings("object")
    asked = ids.to_pylist()[:2]
    answer = embed(http, asked, input_type="id")
    assert_allclose(vectors(answer), stored[:2].numpy(), rtol=1e-6)
    # The vector of a text is that of its id.
    assert_allclose(vectors(embed(http, sentences()[:2])), stored[:2].numpy(), rtol=1e-4, atol=1e-4)


def test_without_the_recorded_encoder_strings_are_ids_or_refused(
    lineage: Lineage, tmp_path: Path
) -> None:
    lineage_of(tmp_path / "plain", versions=1, text=True)
    with running(tmp_path / "plain", ServedTexts(ADDRESSES)) as http:
        assert embed(http, ["7"]).status_code == 200
        refusal = embed(http, ["7"], input_type="query")
        assert refusal.status_code == 503
        assert "records no encoder of text" in refusal.json()["error"]["message"]
        assert http.post("/v1/search", json={"input": "7"}).status_code == 400
    for addresses in ([ADDRESSES[2]], ["recorded"]):
        CALLS.clear()
        with running(lineage.path, ServedTexts(addresses)) as http:
            assert embed(http, TEXTS).status_code == 503
            assert "none of those that may be opened" in http.get("/readyz").json()["problem"]
        assert addresses != ["recorded"] or CALLS == []
    with running(lineage.path, None) as http:
        refusal = embed(http, TEXTS)
        assert refusal.status_code == 400
        assert "--encoder" in refusal.json()["error"]["message"]
        assert embed(http, ["text-1"], input_type="id").status_code == 200


@pytest.fixture(scope="module")
def limited(lineage: Lineage) -> Iterator[TestClient]:
    settings = ServiceSettings(max_text=50, max_batch=8)
    with running(lineage.path, ServedTexts(ADDRESSES), settings) as http:
        yield http


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"input": [[1, 2], [3]]}, 400, "arrays of tokens"),
        ({"input": [1, 2]}, 400, "holds whole numbers, and texts are expected"),
        ({"input": ["word1", " \n"]}, 400, "an empty text at 1"),
        ({"input": ["word1", "w" * 51]}, 413, "51 characters; at most 50"),
        ({"input": ["word1"] * 9}, 413, "9 inputs are more than the 8"),
        ({"input": ["i" * 1025], "input_type": "id"}, 400, "at most 1024"),
        ({"input": ["word1"], "input_type": "image"}, 400, "input_type"),
        ({"input": {"features": {}}, "input_type": "query"}, 400, "holds no texts"),
        ({"input": ["word1"], "side": "object"}, 400, "input_type"),
        ({"input": "word1", "id": "text-1"}, 400, "'input', 'vector'"),
        ({"k": 3, "input": ["word1", 3]}, 400, "'id'"),
        ({"k": 3, "input": ["word1", ""]}, 400, "an empty text at 1"),
        ({"k": 3, "input": "w" * 51}, 413, "51 characters; at most 50"),
        ({"k": 3, "input": ["word1"] * 9}, 413, "9 inputs are more than the 8"),
        ({"k": 3, "input": []}, 400, "a list of texts"),
        ({"vector": [1.0] * 10, "input_type": "query"}, 400, "'input_type' is for texts"),
        ({"k": 3, "input": "word1", "input_type": "id"}, 400, "input_type"),
    ],
)
def test_what_cannot_be_encoded_is_refused(
    limited: TestClient, body: dict[str, Any], status: int, words: str
) -> None:
    route = "search" if body.keys() & {"k", "id", "vector"} else "embeddings"
    refusal = limited.post(f"/v1/{route}", json=body)
    assert refusal.status_code == status, refusal.text
    assert words in refusal.json()["error"]["message"]
    assert refusal.json()["error"]["type"] == "invalid_request_error"


def test_the_limit_of_a_text_is_one_of_characters_in_any_script(http: TestClient) -> None:
    longest = ServiceSettings().max_text
    headers = {"Content-Type": "application/json"}
    for character, escaped in (("漢", False), ("😀", True)):
        for count, status in ((longest, 200), (longest + 1, 413)):
            body = json.dumps({"input": [character * count]}, ensure_ascii=escaped).encode()
            answer = http.post("/v1/embeddings", content=body, headers=headers)
            assert answer.status_code == status, answer.text[:200]


def test_requests_at_once_get_what_each_gets_alone(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[Workers] = []
    run = Workers.run

    async def counted(workers: Workers, work: Any, done: Any) -> Any:
        handed.append(workers)
        return await run(workers, work, done)

    monkeypatch.setattr(Workers, "run", counted)
    with running(lineage.path, ServedTexts(ADDRESSES)) as http:
        text_workers = http.app.state.handler.text_workers  # type: ignore[attr-defined]
        # Only what is encoded waits for a worker.
        first = vectors(embed(http, TEXTS, input_type="query"))
        assert handed == [text_workers]
        assert_allclose(vectors(embed(http, TEXTS, input_type="query")), first)
        assert handed == [text_workers]
        texts = sentences(30)
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda t: vectors(embed(http, [t]))[0], texts))
    expected = word_vectors(texts, 1, 12)
    assert_allclose(together, expected, rtol=1e-5, atol=1e-5)


def test_a_replaced_model_closes_strings_and_leaves_ids(lineage: Lineage) -> None:
    with serving(lineage, word_vectors_of_second) as (http, texts):
        assert embed(http, TEXTS).status_code == 200
        assert http.get("/readyz").json()["problem"] is None
        function_of(texts)._function = lambda rows: word_vectors(rows, 5, 12)
        # Noticed by the canary in the very next batch, and nothing of it is sent.
        refusal = embed(http, ["word55"])
        assert refusal.status_code == 503
        message = refusal.json()["error"]["message"]
        assert "is not the one that the version was published with" in message
        assert "python:" not in message
        # Not even a text that was encoded before, by which of the two nobody knows.
        assert embed(http, TEXTS).status_code == 503
        assert "not the one" in http.get("/readyz").json()["problem"]
        assert GAUGE in http.get("/metrics").text
        assert embed(http, ["text-1"], input_type="id").status_code == 200
        function_of(texts)._function = word_vectors_of_second
        texts.check()
        assert embed(http, TEXTS).status_code == 200


def test_a_search_by_texts_is_one_by_their_vectors(http: TestClient) -> None:
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
    client = client_of(http)
    hits = client.search_texts(TEXTS, 3, version=0, metric="cosine")
    queries = client.encode(TEXTS, 0, role="query")
    for mine, others in zip(hits, client.search(queries, 3, 0, metric="cosine"), strict=True):
        assert mine.ids.equals(others.ids)
        assert_allclose(mine.scores, others.scores, rtol=1e-5)


GAUGE = "evergram_text_encoder_failed 1.0"


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
        function_of(texts)._function = word_vectors_of_second
        texts.check()
        assert embed(http, "word1").status_code == 200


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
    with server(create_app(Service.open(cut_lineage.path, texts=texts))) as url:
        yield url


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:
        yield client


def unit(vectors: np.ndarray) -> np.ndarray:
    lengths = np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1))
    return np.asarray(vectors / lengths[:, None])


def test_an_openai_client_gets_the_first_coordinates_with_length_1(
    client: openai.OpenAI, cut_lineage: Lineage
) -> None:
    newest = word_vectors(TEXTS, 1, 12)
    answer = client.embeddings.create(model="line@v1", input=TEXTS, dimensions=6)
    assert_allclose([d.embedding for d in answer.data], unit(newest[:, :6]), atol=1e-5)
    # A past version is cut after the way back: its own coordinates, by its own record.
    back = newest @ cut_lineage.chain.matrix(1, 0).float().numpy().T
    for dims in CUTS[0]:
        answer = client.embeddings.create(model="line@v0", input=TEXTS, dimensions=dims)
        assert_allclose([d.embedding for d in answer.data], unit(back[:, :dims]), atol=1e-4)
    whole = client.embeddings.create(model="line@v0", input=TEXTS, dimensions=10)
    assert_allclose([d.embedding for d in whole.data], back, rtol=1e-4, atol=1e-4)


def test_what_the_version_does_not_declare_is_refused_in_openais_shape(
    client: openai.OpenAI,
) -> None:
    for model, dims in (("line@v0", 6), ("line@v1", 4), ("line@v0", 12)):
        with pytest.raises(openai.BadRequestError) as refused:
            client.embeddings.create(model=model, input=TEXTS, dimensions=dims)
        assert (refused.value.code, refused.value.param) == ("dimensions", "dimensions")
        assert refused.value.type == "invalid_request_error"


def test_ids_are_cut_alike_by_reader_and_client(cut_lineage: Lineage, address: str) -> None:
    reader = Reader.open(cut_lineage)
    ids = ["text-0", "text-7", "missing"]
    whole = reader.embed(ids, 0)
    read = reader.embed(ids, 0, dimensions=4)
    assert_allclose(read.vectors[:2], unit(whole.vectors[:2, :4]), atol=1e-6)
    assert read.vectors[2].tolist() == [0.0] * 4
    assert read.sources.tolist() == whole.sources.tolist() == [1, 1, -1]
    assert reader.embed(ids, 0, dimensions=10).vectors.tolist() == whole.vectors.tolist()
    with Client(address) as client:
        assert_allclose(client.embed(ids, 0, dimensions=4).vectors, read.vectors, atol=1e-6)
        rows = [sentences()[0], sentences()[7]]
        assert_allclose(client.encode(rows, 0, dimensions=4), read.vectors[:2], atol=1e-3)
        for call in (reader.embed, client.embed):
            with pytest.raises(DataError, match="is not cut to 5"):
                call(ids, 0, dimensions=5)
    reader.close()


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
    assert "is not cut to 5" in evergram.refused(*export, "--dimensions", 5, "--force")
    shards = ("--dimensions", 8, "--shards", 2, "--force")
    assert "--dimensions" in evergram.refused(*export, *shards)


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
