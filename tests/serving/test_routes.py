"""What the routes answer and refuse, against what the reader gives; limits and time-outs; and
bodies that are large, hostile, in pieces, or streams of Arrow."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.testing import assert_allclose, assert_array_equal
from pydantic import ValidationError
from tests.support.arrow_requests import ARROW, post_stream, stream, table_of
from tests.support.lineages import DIMS, lineage_of, read_as, vectors_of
from tests.support.running_service import CountedStore, Running, refused, running, until

from evergram.errors import EvergramError, IntegrityError, StoreError, UnknownVersionError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.reader import Reader
from evergram.serving.errors import RefusedError, clean, error_response
from evergram.serving.request_handler import CHUNK_OVERHEAD, FREE, PAGES, BodyBudget, HeldBody
from evergram.serving.requests import (
    REQUESTS,
    EmbeddingsRequest,
    SearchRequest,
    TransformRequest,
    parse,
)
from evergram.serving.settings import ServiceSettings
from evergram.serving.vector_routes import vectors_answer


def test_embeddings_are_what_each_version_reads(served: Running) -> None:
    for version, encoding in ((0, "float"), (1, "base64"), (2, None)):
        asked = {"model": f"line@v{version}", "input": [7, 299, 7], "encoding_format": encoding}
        answer = served.post("/v1/embeddings", asked)
        body, reader = answer.json(), served.service.shared.reader
        rows = [row["embedding"] for row in body["data"]]
        if encoding == "base64":
            rows = [np.frombuffer(base64.b64decode(row), "<f4").tolist() for row in rows]
        assert_allclose(rows, read_as(2, version)[[7, 299, 7]].numpy(), rtol=1e-5, atol=1e-6)
        # All digits of a float32 are sent.
        assert_array_equal(np.array(rows, np.float32), reader.embed([7, 299, 7], version).vectors)
        fingerprint = reader.lineage.manifest(version).fingerprint
        origin = {"version": version, "computed_from": [2, 2, 2], "side": "object"}
        assert body["evergram"] == {**origin, "fingerprint": fingerprint}
        assert body["model"] == f"line@v{version}"
        assert [row["index"] for row in body["data"]] == [0, 1, 2]
        names = ("version", "computed-from", "fingerprint")
        headers = [answer.headers[f"x-evergram-{name}"] for name in names]
        assert headers == [str(version), "2", fingerprint]


def test_ids_may_be_numbers_or_text_one_or_many_stored_or_missing(served: Running) -> None:
    sent: Any
    for sent, ids in ((5, [5]), ("5", [5]), (["5", "0"], [5, 0]), ([5, 6], [5, 6])):
        answer = served.post("/v1/embeddings", {"input": sent})
        rows = [row["embedding"] for row in answer.json()["data"]]
        assert_allclose(rows, vectors_of(2).numpy()[ids], rtol=1e-6)
    body = served.post("/v1/embeddings", {"input": [1, 900], "missing": "zeros"}).json()
    assert body["evergram"]["computed_from"] == [2, -1]
    assert body["data"][1]["embedding"] == [0] * 10


# Of requests beside those of tests/end_to_end/test_bad_requests.py.
def test_what_cannot_be_answered_is_refused_by_name(served: Running) -> None:
    asked: dict[str, Any]
    for path, asked, status, code, words in (
        ("embeddings", {"model": "line@v" + "9" * 200}, 404, "unknown_version", "no version"),
        ("embeddings", {"model": "other@v0"}, 404, "unknown_version", "'line@v0'"),
        ("embeddings", {"input": [1, *range(900, 907)]}, 404, "unknown_id", "903, 904, …"),
        ("embeddings", {"input": 2**63}, 400, "request", "less than 9223372036854775808"),
        ("embeddings", {"input": "x" * 2000}, 400, "request", "at most 1024 characters"),
        ("search", {"id": 1, "K": 1}, 400, "request", "'K'"),
        ("search", {"id": 1, "k": 0}, 400, "request", "'k'"),
        ("search", {"id": 1, "filter": {"c": ["x"] * 1001}}, 400, "request", "1,000"),
        (
            "search",
            {"id": 1, "filter": {f"c{i}": 1 for i in range(33)}},
            400,
            "request",
            "1 to 32 fields",
        ),
        ("search", {"id": 1, "filter": {"c": None}}, 400, "request", "filter"),
        ("search", {"id": 1, "x" * 500: 1}, 400, "request", "x" * 80),
        ("transform", {"vectors": [[]], "source": 2}, 400, "request", "vectors"),
    ):
        given = {"input": 1, **asked} if path == "embeddings" else asked
        answer = served.post(f"/v1/{path}", given)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code), error
        assert words in error["message"]
        assert set(error) == {"message", "type", "param", "code"}
        for part in served.folder.parts[1:-1]:
            assert f"/{part}" not in answer.text


@pytest.mark.parametrize("other", ["005", "+5", "-0", " 5", "5.0", "５", "5\n", "9" * 19])
def test_an_integer_in_another_form_is_another_id(served: Running, other: str) -> None:
    for route, asked in (
        ("embeddings", {"input": other}),
        ("embeddings", {"input": ["5", other]}),
        ("search", {"id": other}),
    ):
        refused(served.post(f"/v1/{route}", asked), 404, code="unknown_id")
    body = served.post("/v1/embeddings", {"input": ["5", other], "missing": "zeros"}).json()
    assert body["evergram"]["computed_from"] == [2, -1]
    body = served.post("/v1/search", {"id": "5", "ids": ["6", other]}).json()
    assert [hit["id"] for hit in body["data"][0]["hits"]] == [6]


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_search_is_that_of_the_reader(served: Running, metric: Any) -> None:
    queries = vectors_of(0).numpy()[:2]
    expected = served.service.shared.reader.search(queries, 5, 0, metric=metric)
    asked = {"k": 5, "version": "v0", "metric": metric}
    body = served.post("/v1/search", {"vectors": queries.tolist(), **asked}).json()
    for result, hits in zip(body["data"], expected, strict=True):
        assert [h["id"] for h in result["hits"]] == hits.ids.to_pylist()
        assert_allclose([h["score"] for h in result["hits"]], hits.scores, rtol=1e-5)
        assert {h["computed_from"] for h in result["hits"]} == {2}
    among = {"id": 3, "version": 1, "k": 2, "metric": metric, "ids": [9, 3, 8]}
    (result,) = served.post("/v1/search", among).json()["data"]
    assert {hit["id"] for hit in result["hits"]} < {9, 3, 8}


def test_transform_leads_from_version_to_version(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = vectors_of(2).numpy()[:3]
    asked = {"vectors": vectors.tolist(), "source": "v2", "target": 0}
    body = served.post("/v1/transform", asked).json()
    assert_allclose(body["vectors"], read_as(2, 0)[:3].numpy(), rtol=1e-5, atol=1e-6)
    assert body["evergram"]["computed_from"] == [2, 2, 2]
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 10)
    as_stream = stream({"vector": column}, {"source": 2, "target": 0})
    table = table_of(post_stream(served, "/v1/transform", as_stream))
    assert_array_equal(table["vector"].to_pylist(), np.float32(body["vectors"]))
    assert table.schema.metadata[b"evergram.version"] == b"0"
    endless = np.full((1, DIMS[0]), np.inf, dtype=np.float32)
    monkeypatch.setattr(Reader, "transform", lambda *_: endless)
    plain = served.post("/v1/transform", asked)
    for answer in (plain, post_stream(served, "/v1/transform", as_stream)):
        refused(answer, 400, "not finite")


@pytest.mark.parametrize("path", ["/v1/search", "/v1/transform"])
def test_vectors_of_another_fingerprint_are_refused(served: Running, path: str) -> None:
    lineage = served.service.shared.reader.lineage
    asked = {"version": 2} if path == "/v1/search" else {"source": 2, "target": 0}
    for version, status in ((2, 200), (0, 409)):
        own = lineage.manifest(version).fingerprint
        named, body = {**asked, "fingerprint": own}, {"vectors": [HALVES]}
        headers = {"x-evergram-fingerprint": own}
        for answer in (
            post_stream(served, path, stream({"vector": HALF_ROWS}, asked, own)),
            post_stream(served, path, stream({"vector": HALF_ROWS}, named)),
            served.post(path, {**body, **named}),
            served.http.post(path, json={**body, **asked}, headers=headers),
        ):
            if status == 409:
                refused(answer, 409, "are not of version")
            else:
                assert answer.status_code == 200


HALVES = [0.5] * 10
HALF_ROWS = pa.FixedSizeListArray.from_arrays(pa.array(HALVES, pa.float32()), 10)


GIVEN: dict[str, tuple[str, dict[str, Any]]] = {
    "EmbeddingsRequest": ("embeddings", {"input": [1]}),
    "SearchRequest": ("search", {"id": 1}),
    "TransformRequest": ("transform", {"vectors": [[1.0] * 10], "source": 2}),
    "FoldInRequest": ("fold-in", {"candidates": [[1]]}),
}


def test_null_stands_for_the_default_of_every_optional_field(served: Running) -> None:
    for schema in REQUESTS:
        route, given = GIVEN[schema.__name__]
        optional = [name for name in schema.model_fields if name not in given]
        assert optional
        nulls = served.post(f"/v1/{route}", {**dict.fromkeys(optional), **given})
        assert nulls.json() == served.post(f"/v1/{route}", given).json()


def test_versions_and_models_are_listed(fresh: Running) -> None:
    Lineage.open(fresh.folder).label("canary", 1)
    fresh.service.refresh()
    body = fresh.get("/v1/versions").json()
    assert [v["dim"] for v in body["data"]] == [6, 8, 10]
    assert [v["default"] for v in body["data"]] == [False, False, True]
    assert body["data"][0]["computed_from"] == [2]
    assert fresh.get("/v1/dashboard").headers["cache-control"] == "no-store"
    created = {m["id"]: m["created"] for m in fresh.get("/v1/models").json()["data"]}
    assert [*created] == ["line@v0", "line@v1", "line@v2", "line@canary", "line"]
    assert created["line@canary"] == created["line@v1"]


@pytest.mark.parametrize(("path", "asked"), [("embeddings", {"input": 1}), ("search", {"id": 1})])
def test_rows_of_a_version_that_is_not_loaded_yet_are_answered_503(
    served: Running, monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, Any]
) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise UnknownVersionError("There is no version 3.")

    monkeypatch.setattr("evergram.serving.request_handler.PATIENCE", 0.0)
    for name in ("embed", "search"):
        monkeypatch.setattr(Reader, name, unknown)
    answer = served.post(f"/v1/{path}", asked)
    refused(answer, 503, code="taking_up")
    assert answer.headers["retry-after"] == "1"


def test_files_and_addresses_are_taken_out_of_messages() -> None:
    for message, cleaned in (
        ("Ids are int64; those of /srv/a b/x are string.", "Ids are int64; those of the lineage"),
        ("There is no side 'x' in ~/data/line; it has object.", "in the lineage; it has object."),
        ("qdrant:http://host:6333#items is full", "the store is full"),
        ("openai:http://host:81/v1#m returned 3; it", "the encoder returned 3; it"),
        ("python:own.module:encode failed", "the encoder failed"),
        ("sentence-transformers:/srv/models/m is gone", "the encoder is gone"),
        ("qdrant-collection:qd#collection=my%20docs&v0=txt%201 has", "the store has"),
        (
            "pgvector-table:postgresql://a,b/d#table=t&filter=len,ok,We%2Cird, and others",
            "the store, and others",
        ),
        ("Ask /v1/versions for and/or 1/2.", "Ask /v1/versions for and/or 1/2."),
    ):
        assert cleaned in clean(message)


# All other pages show what is in the lineage.
OPEN = {"/", "/dashboard/{name}", "/healthz", "/readyz", "/openapi.json"}


def requests_of(served: Running, *methods: str) -> Iterator[tuple[str, Any]]:
    """Yield the path of every route, and the answer to a request of its methods and of these."""
    app: Any = served.http.app
    routers = [getattr(route, "original_router", None) for route in app.routes]
    included = [route for router in routers if router is not None for route in router.routes]
    for route in [*app.routes, *included]:
        # The place of an included router has no methods.
        for method in {*route.methods, *methods} if hasattr(route, "methods") else ():
            path = route.path.format(name="dashboard.js")
            body: Any = {} if method == "POST" else None
            yield route.path, served.http.request(method, path, json=body)


def test_every_page_but_those_without_data_asks_for_a_token(tmp_path: Path) -> None:
    with running(tmp_path / "line", ServiceSettings(admin_token="root")) as served:
        answers = list(requests_of(served))
    assert {path for path, _ in answers} > OPEN
    assert [(p, a.status_code) for p, a in answers if p not in OPEN and a.status_code != 401] == []
    assert {a.status_code for p, a in answers if p in OPEN} == {200}


def errors_of(kind: type[EvergramError]) -> Iterator[type[EvergramError]]:
    for one in kind.__subclasses__():
        if not issubclass(one, RefusedError):
            yield one
            yield from errors_of(one)


@pytest.mark.parametrize("kind", [EvergramError, *errors_of(EvergramError), OSError])
def test_no_page_answers_an_error_with_a_path_or_an_address(
    served: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
) -> None:
    def failing() -> Any:
        raise kind("/srv/secret/line of postgresql://me:secret@db/x#secret and python:secret:s is")

    monkeypatch.setattr(served.service, "enter", failing)
    answers = list(requests_of(served))
    assert [(path, a.text) for path, a in answers if "secret" in a.text] == []
    assert {path for path, a in answers if a.status_code < 400} == OPEN
    faults = {StoreError: 503, IntegrityError: 500, EvergramError: 500, OSError: 500}
    if kind in faults:
        assert {a.status_code for path, a in answers if path not in OPEN} == {faults[kind]}
        assert "secret@db" in caplog.text


def test_health_readiness_head_and_pages_that_are_not_there(served: Running) -> None:
    assert served.get("/healthz").json() == {"status": "ok"}
    assert served.get("/readyz").json() == {"ready": True, "version": 2, "problem": None}
    for path, status in (("/nowhere", 404), ("/v1/versions/", 404), ("/v1/embeddings", 405)):
        answer = served.get(path)
        refused(answer, status, "/openapi.json", "http")
    assert answer.headers["allow"] == "POST"
    answers = {(path, a.request.method): a for path, a in requests_of(served, "HEAD")}
    with_get = [path for path, method in answers if method == "GET"]
    for path in with_get:
        head, get = answers[path, "HEAD"], answers[path, "GET"]
        assert (head.status_code, head.content) == (get.status_code, b"") == (200, b"")
        assert head.headers["content-type"] == get.headers["content-type"]
    assert answers["/v1/search", "HEAD"].status_code == 405


GENERATED = 10_000


def run_module(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a module of tests.support in a process of its own."""
    command = [sys.executable, "-m", f"tests.support.{name}", *map(str, arguments)]
    root = Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)


def test_it_says_routes_and_how_they_refuse(served: Running) -> None:
    described = served.get("/openapi.json").json()
    posts = {"embeddings", "search", "transform", "fold-in"}
    lists = {"versions", "dashboard", "models"}
    machines = {"/healthz", "/readyz", "/metrics"}
    assert set(described["paths"]) == {f"/v1/{name}" for name in posts | lists} | machines
    schemas = described["components"]["schemas"]
    assert {"EmbeddingsRequest", "SearchRequest"} <= schemas.keys()
    for path in ("/v1/embeddings", "/v1/search", "/v1/transform"):
        post = described["paths"][path]["post"]
        assert set(post["requestBody"]["content"]) == {"application/json", ARROW}
        assert {"400", "401", "403", "404", "409", "413", "503", "504"} <= set(post["responses"])
    assert "HTTPValidationError" not in schemas


@pytest.mark.long
def test_ten_thousand_requests_meet_no_server_error(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line", rows=20)
    run = run_module("generated_requests", tmp_path / "line", GENERATED)
    assert run.returncode == 0, run.stderr[-6000:]
    statuses = json.loads(run.stdout)
    assert sum(statuses.values()) >= GENERATED
    assert min(statuses[f"/v1/{r} 200"] for r in ("embeddings", "search", "transform")) > 100


SMALL = ServiceSettings(
    max_batch=4, max_k=5, max_hits=8, max_dim=12, max_body=2000, timeout=0.5, workers=1,
    max_waiting=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("small") / "line", SMALL) as served:
        yield served


HALVES = [0.5] * 10


def test_requests_past_a_limit_are_refused(small: Running) -> None:
    asked: dict[str, Any]
    for path, asked, status in (
        ("/v1/embeddings", {"input": [1, 2, 3, 4]}, 200),
        ("/v1/embeddings", {"input": [1, 2, 3, 4, 5]}, 413),
        ("/v1/search", {"vector": HALVES, "k": 6}, 400),
        ("/v1/search", {"vectors": [HALVES] * 2, "k": 4}, 200),
        ("/v1/search", {"vectors": [HALVES] * 2, "k": 5}, 413),
        ("/v1/search", {"vector": HALVES, "k": 1, "ids": [1, 2, 3, 4, 5]}, 413),
        ("/v1/transform", {"vectors": [HALVES] * 5, "source": 2}, 413),
        ("/v1/embeddings", {"input": ["1" * 1900, "2"]}, 400),
        ("/v1/embeddings", {"input": ["1" * 2100]}, 413),
    ):
        answer = small.post(path, asked)
        assert answer.status_code == status, answer.text
    chunks = (b" " * 500 for _ in range(1000))
    refused(small.http.post("/v1/embeddings", content=chunks, headers=JSON), 413, "2000 bytes")


JSON = {"Content-Type": "application/json"}


def slow(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[Any]]:
    """Stores that do not answer until the event is set, and the ids that they were asked for."""
    go, asked = threading.Event(), list[Any]()
    read = CountedStore._read

    def waiting(self: CountedStore, ids: Any) -> Any:
        asked.append(ids.to_pylist())
        go.wait(120)
        return read(self, ids)

    monkeypatch.setattr(CountedStore, "_read", waiting)
    return go, asked


def test_a_request_past_its_time_is_answered_504_and_its_body_held_until_its_worker_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "line", ServiceSettings(timeout=0.2, workers=1)) as served:
        handler = served.http.app.state.handler  # type: ignore[attr-defined]
        go, asked = slow(monkeypatch)
        body = b'{"input": [1' + (b"," + b" " * 200 + b"1") * 1000 + b"]}"
        answer = served.http.post("/v1/embeddings", content=body, headers=JSON)
        refused(answer, 504, "0.2 seconds")
        held = handler.bodies.held
        assert held > 100_000
        # One that waits for the worker is given up as well, and never begins.
        refused(served.http.post("/v1/embeddings", content=body, headers=JSON), 504)
        until(lambda: (handler.workers.busy, handler.bodies.held) == (1, held))
        # The event loop was never blocked.
        assert served.get("/healthz").status_code == 200
        go.set()
        until(lambda: not handler.bodies.held and not handler.workers.busy)
        assert asked.count([1]) == 1


def test_a_request_past_the_queue_is_answered_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServiceSettings(workers=1, max_waiting=1, timeout=20)
    with running(tmp_path / "line", settings) as served, ThreadPoolExecutor(2) as pool:
        go, _ = slow(monkeypatch)
        asked: Any = "/v1/embeddings", {"input": 1}
        first = [pool.submit(served.post, *asked) for _ in range(2)]
        handler = served.http.app.state.handler  # type: ignore[attr-defined]
        until(lambda: handler.workers.busy == 2)
        third = served.post(*asked)
        assert (third.status_code, third.headers["retry-after"]) == (503, "1")
        go.set()
        assert [f.result().status_code for f in first] == [200, 200]
        assert handler.workers.busy == 0
        assert served.post(*asked).status_code == 200


def test_metrics_keep_no_other_request_waiting(
    fresh: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = fresh.http.app.state.handler  # type: ignore[attr-defined]
    begun, go = threading.Event(), threading.Event()

    def page() -> bytes:
        begun.set()
        assert go.wait(120)
        return b"page"

    monkeypatch.setattr(handler.metrics, "page", page)
    with ThreadPoolExecutor(PAGES + 2) as pool:
        pages = [pool.submit(fresh.get, "/metrics") for _ in range(PAGES + 2)]
        try:
            assert begun.wait(60)
            assert pool.submit(fresh.get, "/healthz").result(60).status_code == 200
        finally:
            go.set()
        statuses = [answer.result(60).status_code for answer in pages]
    assert sorted(statuses) == [200] * (PAGES + 1) + [503]


LIMITS = ServiceSettings()


def large(asked: dict[str, Any]) -> bytes:
    """The request as JSON of more than one piece, with as much space as that takes."""
    body = json.dumps(asked).encode()
    return body.replace(b", ", b"," + b" " * (3 * 2**16 // max(1, body.count(b", "))))


def post(served: Running, path: str, body: bytes) -> Any:
    assert len(body) > 2 * 2**16
    return served.http.post(path, content=body, headers={"Content-Type": "application/json"})


def test_many_ids_and_vectors_are_read_in_pieces(served: Running) -> None:
    ids = [n % 300 for n in range(2048)]
    for sent in (ids, [str(n) for n in ids]):
        answer = post(served, "/v1/embeddings", large({"input": sent, "version": "v0"}))
        assert answer.status_code == 200, answer.text
        rows = [row["embedding"] for row in answer.json()["data"]]
        assert_allclose(rows, read_as(2, 0).numpy()[ids], rtol=1e-4, atol=1e-5)
    vectors = np.resize(vectors_of(2).numpy(), (2048, DIMS[2]))
    asked = {"source": 2, "target": 0}
    answer = post(served, "/v1/transform", large({"vectors": vectors.tolist(), **asked}))
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMS[2])
    table = table_of(post_stream(served, "/v1/transform", stream({"vector": column}, asked)))
    assert_allclose(answer.json()["vectors"], table["vector"].to_pylist(), rtol=1e-6)


def test_a_vector_may_be_long(served: Running) -> None:
    vector = np.random.default_rng(0).normal(size=LIMITS.max_dim).tolist()
    refused(served.post("/v1/search", {"vector": vector}), 400, code="shape")
    refused(served.post("/v1/search", {"vector": [*vector, 1.0]}), 413, "the limit is 16384")


def test_what_a_body_has_outside_its_texts_is_counted() -> None:
    few = ServiceSettings(max_batch=1)
    text = '[{"\\",' * 20_000
    texts = [text, text, "\\"]
    sent = json.dumps({"input": texts}).encode()
    assert parse(EmbeddingsRequest, sent, few).input == texts
    for what, value in (
        ("texts", {f"{n}\\": None for n in range(70_000)}),
        ("lists and objects", [[]] * 140_000),
        ("values", [1] * 140_000),
    ):
        with pytest.raises(RefusedError, match=what):
            parse(EmbeddingsRequest, json.dumps({"input": 1, "user": value}).encode(), few)


def test_many_wrong_entries_make_few_errors() -> None:
    many = {f"c{n}": None for n in range(500)}
    for conditions in (many, {"c": many}, {"c": [None] * 500}):
        with pytest.raises(ValidationError) as caught:
            SearchRequest.model_validate({"id": 1, "filter": conditions})
        assert caught.value.error_count() < 20
    for objects in (many, [many]):
        with pytest.raises(ValidationError) as caught:
            EmbeddingsRequest.model_validate({"input": objects})
        assert caught.value.error_count() < 20


FAR = list(range(1500))
ROW = [0.5] * 10


def test_a_wrong_element_is_refused_wherever_it_stands(served: Running) -> None:
    asked: dict[str, Any]
    for path, asked, status, words in (
        ("/v1/embeddings", {"input": [*FAR, "a"]}, 400, "'input' is an id"),
        ("/v1/embeddings", {"input": [*FAR, {"features": {}}]}, 400, "'input' is an id"),
        ("/v1/embeddings", {"input": [*FAR, 2**63]}, 400, "less than 9223372036854775808"),
        ("/v1/embeddings", {"input": [*map(str, FAR), "x" * 2000]}, 400, "at most 1024"),
        ("/v1/embeddings", {"input": [*FAR, *FAR]}, 413, "exceed the limit of 2048"),
        ("/v1/search", {"id": 1, "ids": [*FAR, "a"]}, 400, "'ids.1500'"),
        ("/v1/search", {"vectors": [ROW] * 1000 + [[0.5, "x"]]}, 400, "'vectors.1000.1'"),
        ("/v1/search", {"vectors": [ROW] * 1000 + [ROW[:9]]}, 400, "not all have the same length"),
        ("/v1/search", {"vector": [0.5] * 20_000}, 413, "the limit is 16384"),
        ("/v1/search", {"vectors": [[0.5] * 20_000] * 2}, 413, "the limit is 16384"),
        ("/v1/search", {"vectors": [ROW] * 1000, "id": 1}, 400, "give one of"),
        ("/v1/transform", {"vectors": [ROW] * 1000}, 400, "source"),
    ):
        refused(post(served, path, large(asked)), status, words)
    body = large({"vectors": [ROW] * 1000 + [[*ROW[:9], 7.25]], "source": 2})
    for big in (b"1e999", b"-1e999"):
        refused(post(served, "/v1/transform", body.replace(b"7.25", big)), 400, "'vectors.1000.9'")


HOSTILE = [
    (EmbeddingsRequest, b'{"input": [', b"[],", b"[]]}"),
    (EmbeddingsRequest, b'{"input": [', b"{},", b"{}]}"),
    (EmbeddingsRequest, b'{"input": [', b'"",', b"1]}"),
    (EmbeddingsRequest, b'{"input": {"features": {', b'"a":{},', b'"b":[]}}}'),
    (EmbeddingsRequest, b'{"input": [{"features": {"a": [', b"{},", b"[]]}}]}"),
    (EmbeddingsRequest, b'{"input": ', b"[", b""),
    (EmbeddingsRequest, b'{"user": "', b"x", b'", "input": [1]}'),
    (EmbeddingsRequest, b"[", b"[],", b"[]]"),
    (EmbeddingsRequest, b"{", b'"a":1,', b'"b":1}'),
    (SearchRequest, b'{"id": 1, "ids": [', b"[],", b"[]]}"),
    (SearchRequest, b'{"vectors": [', b"[],", b"[]]}"),
    (SearchRequest, b'{"vectors": [[', b"[],", b"[]]]}"),
    (SearchRequest, b'{"vector": [', b"{},", b"1]}"),
    (TransformRequest, b'{"source": 1, "vectors": [', b"{},", b"{}]}"),
]


@pytest.mark.parametrize(("kind", "before", "unit", "after"), HOSTILE)
def test_a_refused_request_takes_little_memory(
    kind: Any, before: bytes, unit: bytes, after: bytes
) -> None:
    for size in (2**16 - 100, 2**17 - 100, 4 * 2**20):
        body = before + unit * (size // len(unit)) + after
        tracemalloc.start()
        try:
            with pytest.raises(RefusedError) as refusal:
                parse(kind, body, LIMITS)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 32 * 2**20, size
        assert len(error_response(refusal.value).body) < 1500


def test_a_sentence_is_of_a_readable_length(served: Running) -> None:
    for asked in (
        {"x" * 60_000: 1},
        {"a.b:" * 15_000: 1},
        {"input": 1, "y" * 60_000: [1]},
        {"input": {"features": {"a.b:/" * 12_000: 1}}},
    ):
        answer = served.post("/v1/embeddings", asked)
        assert answer.status_code == 400
        assert len(answer.content) < 2500


def written(batches: Sequence[pa.RecordBatch], **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    settings = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, batches[0].schema, options=settings) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


STREAMS = 60_000
WITHOUT_SCHEMA = """
import pyarrow as pa
from evergram.errors import DataError
from evergram.serving.requests import read_stream
for rows in (1, 17, 21, 29, 64):
    for kind in (pa.int64(), pa.string()):
        batch = pa.record_batch([pa.array(range(rows)).cast(kind)], names=["id"])
        try:
            read_stream(batch.serialize().to_pybytes(), "id", 100)
        except DataError as error:
            assert "schema" in str(error)
            print("refused")
"""


def test_a_batch_without_a_schema_is_refused() -> None:
    command = [sys.executable, "-c", WITHOUT_SCHEMA]  # read as a schema, some end the process
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout.split()) == (0, ["refused"] * 10), run.stderr[-2000:]


@pytest.mark.parametrize("route", ["embeddings", "search", "transform"])
def test_metadata_of_a_wrong_type_is_refused(served: Running, route: str) -> None:
    columns = {"id": pa.array([1])} if route == "embeddings" else {"vector": HALF_ROWS}
    for asked in ('{"fingerprint": 5}', '{"version": [[]]}', "[]", "null", "{", "\xff"):
        refused(post_stream(served, f"/v1/{route}", stream(columns, asked)), 400, code="request")


def test_streams_that_are_none_too_long_compressed_or_damaged_are_refused(served: Running) -> None:
    good = stream({"id": pa.array([1])}, {})
    empty = pa.record_batch([pa.array([], pa.int64())], names=["id"])
    # A few bytes of zeros that would be any number of rows.
    zeros = pa.record_batch([pa.array(np.zeros(2000, np.int64))], names=["id"])
    for body in (
        b"",
        b"not a stream",
        good[:-40],
        stream({"id": pa.array([1.5])}, {}),
        stream({"id": pa.array([1]), "more": pa.array([1])}, {}),
        stream({"id": pa.array([1, None])}, {}),
        stream({"id": pa.array(["a"]).dictionary_encode()}, {}),
        stream({"id": pa.nulls(3)}, {}),
        written([empty] * (LIMITS.max_batch + 1)),
        written([zeros], compression="zstd"),
        written([zeros], compression="lz4"),
    ):
        refused(post_stream(served, "/v1/embeddings", body), 400, code="data")
    headers = {"Content-Type": f"{ARROW}; x=1"}
    assert served.http.post("/v1/embeddings", content=good, headers=headers).status_code == 200
    columns = {f"{n:03}{'x' * 500}": pa.array([1]) for n in range(50)}
    answer = post_stream(served, "/v1/embeddings", stream(columns, {}))
    assert "004xxx" in answer.text
    assert len(answer.content) < 1000
    whole = stream({"vector": pa.concat_arrays([HALF_ROWS] * 3)}, {"version": 2, "k": 1})
    draw = np.random.default_rng(0)
    for _ in range(60):
        bad = bytearray(whole)
        for at in draw.integers(0, len(bad), size=3):
            bad[at] ^= 1 << int(draw.integers(8))
        assert post_stream(served, "/v1/search", bytes(bad)).status_code < 500


@pytest.mark.long
def test_mutated_streams_are_refused_and_end_nothing(tmp_path: Path) -> None:
    lineage_of(tmp_path / "numbers", rows=30)
    lineage_of(tmp_path / "texts", rows=30, text=True)
    run = run_module("mutated_streams", tmp_path, STREAMS, 0)
    last = (tmp_path / "last").read_bytes()
    assert run.returncode == 0, (run.returncode, last, run.stderr[-4000:])
    statuses = json.loads(run.stdout)
    assert sum(statuses.values()) == STREAMS
    assert {name.split()[1] for name in statuses} <= {"200", "400", "404", "409", "413"}, statuses
    for route in ("embeddings", "search", "transform"):
        # Neither is all of it refused at the first look, nor is nothing damaged.
        assert min(statuses[f"{route} {status}"] for status in (200, 400)) > 500, statuses


def test_bodies_take_of_the_budget_what_they_hold_until_the_last_holder_leaves() -> None:
    def read(budget: BodyBudget, *chunks: bytes) -> HeldBody:
        async def stream() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        body, sent = HeldBody(budget), cast(Any, SimpleNamespace(stream=stream))
        asyncio.run(body.read(sent, 10**9, 5.0))
        return body

    budget = BodyBudget(1000)
    read(budget, b"x" * FREE)
    assert budget.held == 0
    large = read(budget, b"x" * FREE, b"y" * 100)
    assert budget.held == 100 + CHUNK_OVERHEAD
    with pytest.raises(RefusedError) as refusal:
        read(budget, b"x" * (FREE + 1000))
    assert (refusal.value.status, refusal.value.code) == (503, "busy")
    large.hold()
    large.leave()
    assert budget.held == 100 + CHUNK_OVERHEAD
    large.leave()
    assert budget.held == 0
    wide = BodyBudget(10**9)
    read(wide, *[b"x"] * 3000)
    assert wide.held == 3000 + 2999 * CHUNK_OVERHEAD - FREE


FLOATS = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=9),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)
WAYS = st.sampled_from([None, "float", "base64", "arrow", "arrow of int64", "arrow of string"])


@given(FLOATS, WAYS, st.booleans())
def test_an_answer_is_json_or_a_stream_of_every_bit(
    vectors: np.ndarray, way: str | None, turned: bool
) -> None:
    sources, arrow = np.arange(len(vectors)), way is not None and way.startswith("arrow")
    manifest = SimpleNamespace(fingerprint="sha256:a")
    lineage = SimpleNamespace(name='a"b', manifest=lambda _: manifest)
    call: Any = SimpleNamespace(arrow_out=arrow, lineage=lineage)
    ids = pa.array(sources * 7 - 3).cast(str(way)[9:]) if " " in str(way) else None
    given_vectors = np.asfortranarray(vectors) if turned else vectors
    encoding = None if arrow else way
    answer = vectors_answer(call, 1, None, given_vectors, sources, ids=ids, encoding=encoding)
    if arrow:
        with pa.ipc.open_stream(answer.body) as reader:
            (batch,) = list(reader)
        batch.validate(full=True)
        assert batch.schema.names == [*([] if ids is None else ["id"]), "vector", "computed_from"]
        assert batch.schema.metadata[b"evergram.model"] == b'a"b@v1'
        assert ids is None or batch["id"].equals(ids)
        numbers, origin = batch["vector"].to_pylist(), batch["computed_from"].to_pylist()
    else:
        body = json.loads(answer.body)
        assert body["model"] == 'a"b@v1'
        origin = body["evergram"]["computed_from"]
        numbers = body["vectors"] if way is None else [row["embedding"] for row in body["data"]]
        if way == "base64":
            numbers = [np.frombuffer(base64.b64decode(row), "<f4") for row in numbers]
    assert_array_equal(np.asarray(numbers, np.float32), vectors)
    assert origin == sources.tolist()
