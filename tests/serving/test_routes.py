"""What the routes answer and refuse, against what the reader gives; limits and time-outs."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose
from pydantic import BaseModel
from starlette.testclient import TestClient
from tests.support.arrow_requests import ARROW, post_stream, stream, table_of
from tests.support.lineages import DIMS, lineage_of, read_as, vectors_of
from tests.support.running_service import CountedStore, Running, http_of, running

from evergram.errors import EvergramError, IntegrityError, StoreError, UnknownVersionError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.retrieval.reader import Reader
from evergram.serving.http.errors import RefusedError, clean
from evergram.serving.http.request_handler import PAGES
from evergram.serving.http.request_schemas import (
    REQUESTS,
)
from evergram.serving.http.workers import Workers
from evergram.serving.settings import ServiceSettings


@pytest.mark.parametrize(("version", "encoding"), [(0, "float"), (1, "base64"), (2, None)])
def test_embeddings_are_what_each_version_reads(
    served: Running, version: int, encoding: str | None
) -> None:
    asked = {"model": f"line@v{version}", "input": [7, 299, 7], "encoding_format": encoding}
    answer = served.post("/v1/embeddings", asked)
    body = answer.json()
    rows = [row["embedding"] for row in body["data"]]
    if encoding == "base64":
        rows = [np.frombuffer(base64.b64decode(row), "<f4").tolist() for row in rows]
    assert_allclose(rows, read_as(2, version)[[7, 299, 7]].numpy(), rtol=1e-5, atol=1e-6)
    origin = {
        "version": version,
        "computed_from": [2, 2, 2],
        "side": "object",
        "fingerprint": served.service.shared.reader.lineage.manifest(version).fingerprint,
    }
    assert (body["evergram"], body["model"]) == (origin, f"line@v{version}")
    assert [row["index"] for row in body["data"]] == [0, 1, 2]
    assert answer.headers["x-evergram-version"] == str(version)
    assert answer.headers["x-evergram-computed-from"] == "2"
    assert answer.headers["x-evergram-fingerprint"] == origin["fingerprint"]


def test_ids_may_be_numbers_or_text_one_or_many_stored_or_missing(served: Running) -> None:
    sent: Any
    for sent, ids in ((5, [5]), ("5", [5]), (["5", "0"], [5, 0]), ([5, 6], [5, 6])):
        answer = served.post("/v1/embeddings", {"input": sent})
        rows = [row["embedding"] for row in answer.json()["data"]]
        assert_allclose(rows, vectors_of(2).numpy()[ids], rtol=1e-6)
    body = served.post("/v1/embeddings", {"input": [1, 900], "missing": "zeros"}).json()
    assert body["evergram"]["computed_from"] == [2, -1]
    assert body["data"][1]["embedding"] == [0] * 10
    other = {"input": ["5", "005", "00000000000000005"], "missing": "zeros"}  # texts, not numbers
    assert served.post("/v1/embeddings", other).json()["evergram"]["computed_from"] == [2, -1, -1]


# Of requests beside those of tests/end_to_end/test_bad_requests.py.
@pytest.mark.parametrize(
    ("path", "asked", "status", "code", "words"),
    [
        ("embeddings", {"model": "line@v7"}, 404, "unknown_version", "0, 1, 2"),
        ("embeddings", {"model": "line@v" + "9" * 200}, 404, "unknown_version", "no version"),
        ("embeddings", {"model": "other@v0"}, 404, "unknown_version", "'line@v0'"),
        ("embeddings", {"input": [1, *range(900, 907)]}, 404, "unknown_id", "903, 904, …"),
        ("embeddings", {"input": {"features": {"genre": "war"}}}, 400, "lineage", "no encoder"),
        ("embeddings", {"input": 2**63}, 400, "request", "less than 9223372036854775808"),
        ("embeddings", {"input": "x" * 2000}, 400, "request", "at most 1024 characters"),
        ("search", {"id": 900}, 404, "unknown_id", "900"),
        ("search", {"id": 1, "K": 1}, 400, "request", "'K'"),
        ("search", {"id": 1, "k": 0}, 400, "request", "'k'"),
        ("search", {"id": 1, "filter": {"c": ["x"] * 1001}}, 400, "request", "1,000 values"),
        ("search", {"id": 1, "filter": {"c": "x" * 1025}}, 400, "request", "1,024 characters"),
        ("search", {"id": 1, "filter": {"c": {"gte": "x" * 1025}}}, 400, "request", "filter"),
        ("search", {"id": 1, "filter": {f"c{i}": 1 for i in range(33)}}, 400, "request", "32"),
        ("search", {"id": 1, "filter": {"c" * 257: 1}}, 400, "request", "256 characters"),
        ("search", {"id": 1, "filter": {"c": None}}, 400, "request", "filter"),
        ("search", {"id": 1, "filter": {}}, 400, "request", "filter"),
        ("search", {"id": 1, "x" * 500: 1}, 400, "request", "x" * 80),
        ("transform", {"vectors": [[0.0] * 9], "source": 2}, 400, "shape", "9"),
        ("transform", {"vectors": [[]], "source": 2}, 400, "request", "vectors"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(
    served: Running, path: str, asked: dict[str, Any], status: int, code: str, words: str
) -> None:
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
    for asked in (other, ["5", other]):
        answer = served.post("/v1/embeddings", {"input": asked})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_id")
    body = served.post("/v1/embeddings", {"input": ["5", other], "missing": "zeros"}).json()
    assert body["evergram"]["computed_from"] == [2, -1]
    assert_allclose(body["data"][0]["embedding"], vectors_of(2).numpy()[5], rtol=1e-6)
    assert body["data"][1]["embedding"] == [0] * 10
    answer = served.post("/v1/search", {"id": other})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_id")
    body = served.post("/v1/search", {"id": "5", "ids": ["6", other]}).json()
    assert [hit["id"] for hit in body["data"][0]["hits"]] == [6]


def test_embeddings_as_an_arrow_stream(served: Running) -> None:
    body = stream({"id": pa.array([3, 4])}, {"model": "line@v0"})
    table = table_of(post_stream(served, "/v1/embeddings", body))
    assert table["id"].to_pylist() == [3, 4]
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 6)
    assert_allclose(table["vector"].to_pylist(), read_as(2, 0)[[3, 4]].numpy(), rtol=1e-5)
    assert table["computed_from"].to_pylist() == [2, 2]
    assert table.schema.metadata[b"evergram.version"] == b"0"


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
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(queries.ravel()), 6)
    table = table_of(post_stream(served, "/v1/search", stream({"vector": vectors}, asked)))
    assert table["query"].to_pylist() == [0] * 5 + [1] * 5
    assert table["id"].to_pylist() == [k for hits in expected for k in hits.ids.to_pylist()]
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
    assert_allclose(table["vector"].to_pylist(), body["vectors"], rtol=1e-6)
    endless = np.full((1, DIMS[0]), np.inf, dtype=np.float32)
    monkeypatch.setattr(Reader, "transform", lambda *_: endless)
    plain = served.post("/v1/transform", asked)
    for answer in (plain, post_stream(served, "/v1/transform", as_stream)):
        assert answer.status_code == 400
        assert "not finite" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/search", "/v1/transform"])
def test_vectors_of_another_fingerprint_are_refused(served: Running, path: str) -> None:
    lineage = served.service.shared.reader.lineage
    mine, other = (lineage.manifest(v).fingerprint for v in (1, 0))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 8, pa.float32()), 8)
    asked = {"version": 1} if path == "/v1/search" else {"source": 1, "target": 0}
    assert post_stream(served, path, stream({"vector": vectors}, asked, mine)).status_code == 200
    answer = post_stream(served, path, stream({"vector": vectors}, asked, other))
    assert answer.status_code == 409
    assert "another space" in answer.json()["error"]["message"]
    key = "vector" if path == "/v1/search" else "vectors"
    body = {**asked, key: [0.5] * 8 if key == "vector" else [[0.5] * 8]}
    headers = {"x-evergram-fingerprint": other}
    assert served.http.post(path, json=body, headers=headers).status_code == 409


GIVEN: dict[str, tuple[str, dict[str, Any]]] = {
    "EmbeddingsRequest": ("embeddings", {"input": [1]}),
    "SearchRequest": ("search", {"id": 1}),
    "TransformRequest": ("transform", {"vectors": [[1.0] * 10], "source": 2}),
    "FoldInRequest": ("fold-in", {"candidates": [[1]]}),
}


@pytest.mark.parametrize("schema", REQUESTS)
def test_null_stands_for_the_default_of_every_optional_field(
    served: Running, schema: type[BaseModel]
) -> None:
    route, given = GIVEN[schema.__name__]
    optional = [name for name in schema.model_fields if name not in given]
    assert optional
    nulls = served.post(f"/v1/{route}", {**dict.fromkeys(optional), **given})
    assert nulls.json() == served.post(f"/v1/{route}", given).json()


def test_versions_and_models_are_listed(fresh: Running) -> None:
    body = fresh.get("/v1/versions").json()
    assert [v["dim"] for v in body["data"]] == [6, 8, 10]
    assert [v["default"] for v in body["data"]] == [False, False, True]
    assert body["data"][0]["computed_from"] == [2]
    assert "embeddings/2/object.parquet" in body["data"][2]["checked"]
    canaries = "versions/1/canary.parquet"
    assert canaries in body["data"][1]["unchecked"]
    assert fresh.get("/v1/dashboard").status_code == 200
    assert canaries in fresh.get("/v1/versions").json()["data"][1]["checked"]
    names = [m["id"] for m in fresh.get("/v1/models").json()["data"]]
    assert names == ["line@v0", "line@v1", "line@v2", "line"]
    assert fresh.get("/v1/models/line@v1").json()["id"] == "line@v1"
    error = fresh.get("/v1/models/line@v9").json()["error"]
    assert (error["code"], error["param"]) == ("unknown_version", "model")


def test_labels_are_models_and_consumers_are_listed_without_tokens(fresh: Running) -> None:
    lineage, registry = Lineage.open(fresh.folder), ConsumerRegistry.open(fresh.folder)
    lineage.label("canary", 1)
    registry.add("ads", "canary", lineage.resolve, allowed=["v0"])
    fresh.service.refresh()
    created = {m["id"]: m["created"] for m in fresh.get("/v1/models").json()["data"]}
    assert created["line@canary"] == created["line@v1"]
    (ads,) = fresh.get("/v1/consumers").json()["data"]
    assert set(ads) == {"name", "pinned", "version", "allowed", "since"}
    assert (ads["name"], ads["pinned"], ads["allowed"]) == ("ads", "canary", ["canary", "v0"])
    assert ads["version"] == 1


@pytest.mark.parametrize("path", ["embeddings", "search"])
def test_rows_of_a_version_that_is_not_loaded_yet_are_answered_503(
    served: Running, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise UnknownVersionError("There is no version 3.")

    monkeypatch.setattr("evergram.serving.http.workers.PATIENCE", 0.0)
    for name in ("embed", "search"):
        monkeypatch.setattr(Reader, name, unknown)
    answer = served.post(f"/v1/{path}", {"input": 1} if path == "embeddings" else {"id": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "taking_up")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreError("postgresql://me@db.internal/shop#items went away: /var/run/x"), 503),
        (IntegrityError("/srv/data/line/versions/0/x.safetensors is damaged."), 500),
        (RuntimeError("/srv/data/secret.py line 3"), 500),
        (EvergramError("no class fits"), 500),
    ],
)
def test_faults_of_the_service_are_answered_without_particulars(
    served: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    status: int,
) -> None:
    def broken(self: CountedStore, ids: Any) -> Any:
        raise error

    monkeypatch.setattr(CountedStore, "_read", broken)
    with caplog.at_level(logging.ERROR):
        answer = served.post("/v1/embeddings", {"input": 1})
    assert answer.status_code == status
    for word in ("/srv", "/var", "postgresql", "Traceback", "secret"):
        assert word not in answer.text
    assert str(error) in caplog.text


@pytest.mark.parametrize(
    ("message", "cleaned"),
    [
        ("Ids are int64; those of /srv/a b/x are string.", "Ids are int64; those of the lineage"),
        ("There is no side 'x' in ~/data/line; it has object.", "in the lineage; it has object."),
        ("qdrant:http://host:6333#items is full", "the store is full"),
        ("openai:http://host:81/v1#m returned 3; it", "the encoder returned 3; it"),
        ("python:own.module:encode failed", "the encoder failed"),
        ("model2vec:/srv/models/m is gone", "the encoder is gone"),
        ("qdrant-collection:qd#collection=my%20docs&v0=txt%201 has", "the store has"),
        (
            "pgvector-table:postgresql://a,b/d#table=t&filter=len,ok,We%2Cird, and others",
            "the store, and others",
        ),
        ("Ask /v1/versions for and/or 1/2.", "Ask /v1/versions for and/or 1/2."),
    ],
)
def test_files_and_addresses_are_taken_out_of_messages(message: str, cleaned: str) -> None:
    assert cleaned in clean(message)


# All other pages show what is in the lineage.
OPEN = {"/", "/dashboard/{name}", "/healthz", "/readyz", "/openapi.json"}


def requests_of(served: Running, *methods: str) -> Iterator[tuple[str, Any]]:
    """Yield the path of every route of the application, and the answer to a request of it.

    Args:
        methods: asked beside the route's own.
    """
    app: Any = served.http.app
    routers = [getattr(route, "original_router", None) for route in app.routes]
    included = [route for router in routers if router is not None for route in router.routes]
    for route in [*app.routes, *included]:
        if not hasattr(route, "methods"):  # the place of an included router
            continue
        for method in {*route.methods, *methods}:
            yield (
                route.path,
                served.http.request(
                    *(method, route.path.format(model="line@v0", name="dashboard.js")),
                    json={} if method == "POST" else None,
                ),
            )


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
    served: Running, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def failing() -> Any:
        raise kind("/srv/secret/line of postgresql://me:secret@db/x#secret and python:secret:s is")

    monkeypatch.setattr(served.service, "enter", failing)
    answers = list(requests_of(served))
    assert [(path, a.text) for path, a in answers if "secret" in a.text] == []
    assert {path for path, a in answers if a.status_code < 400} == OPEN


def test_health_readiness_and_pages_that_are_not_there(fresh: Running) -> None:
    assert fresh.get("/healthz").json() == {"status": "ok"}
    assert fresh.get("/readyz").json() == {"ready": True, "version": 2, "problem": None}
    for path, status in (("/nowhere", 404), ("/v1/versions/", 404), ("/v1/embeddings", 405)):
        answer = fresh.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, "http")
        assert "/openapi.json" in answer.json()["error"]["message"]
    assert answer.headers["allow"] == "POST"


def test_head_works_wherever_get_does(served: Running) -> None:
    answers = {(path, a.request.method): a for path, a in requests_of(served, "HEAD")}
    with_get = [path for path, method in answers if method == "GET"]
    for path in with_get:
        head, get = answers[path, "HEAD"], answers[path, "GET"]
        assert (head.status_code, head.content) == (get.status_code, b"") == (200, b"")
        assert head.headers["content-type"] == get.headers["content-type"]
    assert answers["/v1/search", "HEAD"].status_code == 405


GENERATED = 10_000


def test_it_says_routes_limits_and_how_to_refuse(served: Running) -> None:
    described = served.get("/openapi.json").json()
    posts = {"embeddings", "search", "transform", "fold-in"}
    lists = {"versions", "consumers", "dashboard", "models", "models/{model}"}
    machines = {"/healthz", "/readyz", "/metrics"}
    assert set(described["paths"]) == {f"/v1/{name}" for name in posts | lists} | machines
    schemas = described["components"]["schemas"]
    limits = ServiceSettings()
    search = schemas["SearchRequest"]["properties"]
    assert search["k"]["maximum"] == limits.max_k
    assert search["vectors"]["anyOf"][0]["maxItems"] == limits.max_batch
    kinds = schemas["EmbeddingsRequest"]["properties"]["input"]["anyOf"]
    assert {k["maxItems"] for k in kinds if k.get("type") == "array"} == {limits.max_batch}
    for path in ("/v1/embeddings", "/v1/search", "/v1/transform"):
        post = described["paths"][path]["post"]
        assert set(post["requestBody"]["content"]) == {"application/json", ARROW}
        assert {"400", "401", "403", "404", "409", "413", "503", "504"} <= set(post["responses"])
    assert "HTTPValidationError" not in schemas


@pytest.mark.long
def test_ten_thousand_requests_meet_no_server_error(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line", rows=20)
    command = [sys.executable, "-m", "tests.support.generated_requests"]
    run = subprocess.run(
        [*command, str(tmp_path / "line"), str(GENERATED)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert run.returncode == 0, run.stderr[-6000:]
    statuses = json.loads(run.stdout)
    assert sum(statuses.values()) >= GENERATED
    for route in ("embeddings", "search", "transform"):
        assert statuses[f"/v1/{route} 200"] > 100, statuses


SMALL = ServiceSettings(
    max_batch=4, max_k=5, max_hits=8, max_dim=12, max_body=2000, timeout=0.5, workers=1,
    max_waiting=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("small") / "line", SMALL) as served:
        yield served


HALVES = [0.5] * 10


@pytest.mark.parametrize(
    ("path", "asked", "status"),
    [
        ("/v1/embeddings", {"input": [1, 2, 3, 4]}, 200),
        ("/v1/embeddings", {"input": [1, 2, 3, 4, 5]}, 413),
        ("/v1/search", {"vector": HALVES, "k": 6}, 400),
        ("/v1/search", {"vectors": [HALVES] * 2, "k": 4}, 200),
        ("/v1/search", {"vectors": [HALVES] * 2, "k": 5}, 413),
        ("/v1/search", {"vector": HALVES, "k": 1, "ids": [1, 2, 3, 4, 5]}, 413),
        ("/v1/transform", {"vectors": [HALVES] * 5, "source": 2}, 413),
        ("/v1/embeddings", {"input": ["1" * 1900, "2"]}, 400),
        ("/v1/embeddings", {"input": ["1" * 2100]}, 413),
    ],
)
def test_requests_past_a_limit_are_refused(
    small: Running, path: str, asked: dict[str, Any], status: int
) -> None:
    answer = small.post(path, asked)
    assert answer.status_code == status, answer.text


JSON = {"Content-Type": "application/json"}


def test_a_body_is_counted_as_it_comes(small: Running) -> None:
    chunks = (b" " * 500 for _ in range(1000))
    answer = small.http.post("/v1/embeddings", content=chunks, headers=JSON)
    assert answer.status_code == 413
    assert "2000 bytes" in answer.json()["error"]["message"]


def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Stores that do not answer until the event is set."""
    go = threading.Event()
    read = CountedStore._read

    def waiting(self: CountedStore, ids: Any) -> Any:
        go.wait(120)
        return read(self, ids)

    monkeypatch.setattr(CountedStore, "_read", waiting)
    return go


def test_a_request_past_its_time_is_answered_504_and_its_body_held_until_its_worker_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "line", ServiceSettings(timeout=0.2, workers=1)) as served:
        bodies = served.http.app.state.handler.bodies  # type: ignore[attr-defined]
        go = slow(monkeypatch)
        body = b'{"input": [1' + (b"," + b" " * 200 + b"1") * 1000 + b"]}"
        answer = served.http.post("/v1/embeddings", content=body, headers=JSON)
        assert answer.status_code == 504
        assert "0.2 seconds" in answer.json()["error"]["message"]
        assert bodies.held > 100_000
        # The event loop was never blocked.
        assert served.get("/healthz").status_code == 200
        go.set()
        while bodies.held:
            time.sleep(0.01)


def test_a_request_past_the_queue_is_answered_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServiceSettings(workers=1, max_waiting=1, timeout=20)
    with running(tmp_path / "line", settings) as served:
        go = slow(monkeypatch)

        def ask() -> Any:
            return served.post("/v1/embeddings", {"input": 1})

        with ThreadPoolExecutor(3) as pool:
            first = [pool.submit(ask) for _ in range(2)]
            handler = served.http.app.state.handler  # type: ignore[attr-defined]
            while handler.workers.busy < 2:
                time.sleep(0.01)
            third = ask()
            assert third.status_code == 503
            assert third.headers["retry-after"] == "1"
            go.set()
            assert [f.result().status_code for f in first] == [200, 200]
        assert handler.workers.busy == 0
        assert ask().status_code == 200


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
    assert sorted(set(statuses)) == [200, 503]
    assert statuses.count(200) == PAGES + 1


def test_work_cancelled_before_it_starts_never_runs() -> None:
    started, release = threading.Event(), threading.Event()
    ran: list[str] = []
    done: list[str] = []

    def slow() -> None:
        started.set()
        assert release.wait(60)
        ran.append("slow")

    async def scene() -> None:
        workers = Workers(size=1, waiting=1)
        first = asyncio.create_task(workers.run(slow, lambda: done.append("slow")))
        await asyncio.to_thread(started.wait, 60)
        second = asyncio.create_task(
            workers.run(lambda: ran.append("waiting"), lambda: done.append("waiting"))
        )
        await asyncio.sleep(0)
        assert workers.busy == 2
        second.cancel()
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        # What has started goes on without anybody who waits for it.
        assert done == ["waiting"]
        release.set()
        workers.close()
        with pytest.raises(RefusedError) as refusal:
            await workers.run(lambda: None, lambda: done.append("closed"))
        assert refusal.value.status == 503
        assert workers.busy == 0

    asyncio.run(scene())
    assert ran == ["slow"]
    assert done == ["waiting", "slow", "closed"]


def test_only_a_few_ids_in_memory_are_answered_without_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[object] = []
    run = Workers.run

    async def counted(workers: Workers, work: Any, done: Any) -> Any:
        handed.append(work)
        return await run(workers, work, done)

    monkeypatch.setattr(Workers, "run", counted)

    def workers_of(http: TestClient, body: bytes) -> int:
        handed.clear()
        http.post("/v1/embeddings", content=body, headers=JSON)
        return len(handed)

    with http_of(lineage_of(tmp_path / "line").path) as http:
        assert workers_of(http, b'{"input": [1, 2]}') == 0
        for body in (
            b'{"input": {"features": {}}}',
            rb'{"input": {"\u0066eatures": {}}}',
            b'{"input": 1, "user": "' + b"x" * 5000 + b'"}',
        ):
            assert workers_of(http, body) == 1
    # A store elsewhere is always read by a worker.
    with running(tmp_path / "line") as served:
        assert workers_of(served.http, b'{"input": [1, 2]}') == 1
