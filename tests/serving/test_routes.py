"""What the routes answer and refuse, against what the reader gives."""

from __future__ import annotations

import base64
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose
from pydantic import BaseModel
from tests.support.arrow_requests import ARROW, post_stream, stream, table_of
from tests.support.lineages import DIMS, lineage_of, read_as, vectors_of
from tests.support.running_service import CountedStore, Running, running

from evergram.errors import EvergramError, IntegrityError, StoreError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.retrieval.reader import Reader
from evergram.serving.http.answers.errors import RefusedError, clean
from evergram.serving.http.requests.schemas import (
    REQUESTS,
)
from evergram.serving.settings import ServiceSettings


@pytest.mark.parametrize(("version", "encoding"), [(0, "float"), (1, "base64"), (2, "float")])
def test_embeddings_are_what_each_version_reads(
    served: Running, version: int, encoding: str
) -> None:
    asked = {"model": f"line@v{version}", "input": [7, 299, 7], "encoding_format": encoding}
    answer = served.post("/v1/embeddings", asked)
    body = answer.json()
    rows = [row["embedding"] for row in body["data"]]
    if encoding == "base64":
        rows = [np.frombuffer(base64.b64decode(row), "<f4").tolist() for row in rows]
    expected = read_as(2, version)[[7, 299, 7]].numpy()
    assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)
    fingerprint = served.service.shared.reader.lineage.manifest(version).fingerprint
    assert body["evergram"] == {
        "version": version,
        "computed_from": [2, 2, 2],
        "side": "object",
        "fingerprint": fingerprint,
    }
    assert body["model"] == f"line@v{version}"
    assert [row["index"] for row in body["data"]] == [0, 1, 2]
    assert answer.headers["x-evergram-version"] == str(version)
    assert answer.headers["x-evergram-computed-from"] == "2"
    assert answer.headers["x-evergram-fingerprint"] == fingerprint


@pytest.mark.parametrize(
    ("sent", "ids"),
    [(5, [5]), ("5", [5]), (["5", "0"], [5, 0]), ([5, 6], [5, 6])],
)
def test_ids_may_be_numbers_or_text_one_or_many(served: Running, sent: Any, ids: list[int]) -> None:
    answer = served.post("/v1/embeddings", {"input": sent})
    rows = [row["embedding"] for row in answer.json()["data"]]
    assert_allclose(rows, vectors_of(2).numpy()[ids], rtol=1e-6)


@pytest.mark.parametrize(
    ("asked", "status", "code", "words"),
    [
        ({"input": 1, "model": "line@v7"}, 404, "unknown_version", "0, 1, 2"),
        ({"input": 1, "model": "line@v" + "9" * 200}, 404, "unknown_version", "no version"),
        ({"input": 1, "model": "other@v0"}, 404, "unknown_version", "'line@v0'"),
        ({"input": 1, "dimensions": 4}, 400, "dimensions", "10 dimensions"),
        ({"input": 1, "side": "query"}, 400, "lineage", "no side 'query'"),
        ({"input": [1, *range(900, 907)]}, 404, "unknown_id", "900, 901, 902, 903, 904, …"),
        ({"input": 1, "sides": "x"}, 400, "request", "sides"),
        ({"input": 1, "model": "line", "version": 0}, 400, "request", "not in both"),
        ({"input": {"features": {"genre": "war"}}}, 400, "lineage", "no encoder"),
        ({"input": 2**63}, 400, "request", "less than 9223372036854775808"),
        ({"input": "x" * 2000}, 400, "request", "at most 1024 characters"),
    ],
)
def test_embeddings_refuses_with_a_sentence(
    served: Running, asked: dict[str, Any], status: int, code: str, words: str
) -> None:
    answer = served.post("/v1/embeddings", asked)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_missing_ids_may_be_zeros(served: Running) -> None:
    body = served.post("/v1/embeddings", {"input": [1, 900], "missing": "zeros"}).json()
    assert body["evergram"]["computed_from"] == [2, -1]
    assert body["data"][1]["embedding"] == [0] * 10


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
def test_search_is_that_of_the_reader(served: Running, metric: str) -> None:
    queries = vectors_of(0).numpy()[:2]
    expected = served.service.shared.reader.search(queries, 5, 0, metric=metric)  # type: ignore[arg-type]
    asked = {"vectors": queries.tolist(), "k": 5, "version": "v0", "metric": metric}
    body = served.post("/v1/search", asked).json()
    for result, hits in zip(body["data"], expected, strict=True):
        assert [h["id"] for h in result["hits"]] == hits.ids.to_pylist()
        assert_allclose([h["score"] for h in result["hits"]], hits.scores, rtol=1e-5)
        assert {h["computed_from"] for h in result["hits"]} == {2}
    asked = {"k": 5, "version": 0, "metric": metric}
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(queries.ravel()), 6)
    table = table_of(post_stream(served, "/v1/search", stream({"vector": vectors}, asked)))
    assert table["query"].to_pylist() == [0] * 5 + [1] * 5
    assert table["id"].to_pylist() == [k for hits in expected for k in hits.ids.to_pylist()]


def test_search_by_id_and_among_ids(served: Running) -> None:
    asked = {"id": 3, "version": 1, "k": 2, "metric": "l2", "ids": [9, 3, 8]}
    body = served.post("/v1/search", asked).json()
    hits = body["data"][0]["hits"]
    assert hits[0]["id"] == 3
    assert hits[1]["id"] in (8, 9)
    answer = served.post("/v1/search", {"id": 900})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "unknown_id", "id")


def test_transform_leads_from_version_to_version(served: Running) -> None:
    vectors = vectors_of(2).numpy()[:3]
    asked = {"vectors": vectors.tolist(), "source": "v2", "target": 0}
    body = served.post("/v1/transform", asked).json()
    assert_allclose(body["vectors"], read_as(2, 0)[:3].numpy(), rtol=1e-5, atol=1e-6)
    assert body["evergram"]["computed_from"] == [2, 2, 2]
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 10)
    stream_body = stream({"vector": column}, {"source": 2, "target": 0})
    table = table_of(post_stream(served, "/v1/transform", stream_body))
    assert_allclose(table["vector"].to_pylist(), body["vectors"], rtol=1e-6)


def test_vectors_that_are_not_finite_are_not_answered(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*_: Any) -> Any:
        return np.full((1, DIMS[0]), np.inf, dtype=np.float32)

    monkeypatch.setattr(Reader, "transform", endless)
    asked = {"source": 2, "target": 0}
    vector = [0.5] * DIMS[2]
    body = stream({"vector": pa.array([vector], pa.list_(pa.float32()))}, asked)
    answers = [
        served.post("/v1/transform", {"vectors": [vector], **asked}),
        post_stream(served, "/v1/transform", body),
    ]
    for answer in answers:
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


@pytest.mark.parametrize(
    ("path", "asked", "code"),
    [
        ("/v1/search", {"vector": [0.0] * 10, "id": 1}, "request"),
        ("/v1/search", {"vector": [0.0] * 9}, "shape"),
        ("/v1/search", {"vector": [1e300] * 10}, "data"),
        ("/v1/search", {"vector": [0.0] * 10, "metric": "dot"}, "request"),
        ("/v1/search", {"vector": [0.0] * 10, "k": 0}, "request"),
        ("/v1/transform", {"vectors": [[0.0] * 9], "source": 2}, "shape"),
        ("/v1/transform", {"vectors": [[]], "source": 2}, "request"),
    ],
)
def test_search_and_transform_refuse_with_a_sentence(
    served: Running, path: str, asked: dict[str, Any], code: str
) -> None:
    answer = served.post(path, asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code), answer.text


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


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"K": 1}, "K"),
        ({"k": 0}, "k"),
        ({"filter": {"c": ["x"] * 1001}}, "filter"),
        ({"filter": {"c": "x" * 1025}}, "filter"),
        ({"filter": {"c": {"gte": "x" * 1025}}}, "filter"),
        ({"filter": {f"c{i}": 1 for i in range(33)}}, "filter"),
        ({"filter": {"c" * 257: 1}}, "filter"),
        ({"filter": {"c": None}}, "filter"),
        ({"filter": {}}, "filter"),
        ({"x" * 500: 1}, "x" * 80),
    ],
)
def test_a_field_that_is_wrong_is_named(served: Running, asked: Any, param: str) -> None:
    answer = served.post("/v1/search", {"id": 1, **asked})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "request", param)
    assert param in error["message"]


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


def test_labels_are_models_of_the_version_that_they_are_on(fresh: Running) -> None:
    Lineage.open(fresh.folder).label("canary", 0)
    fresh.service.refresh()
    created = {m["id"]: m["created"] for m in fresh.get("/v1/models").json()["data"]}
    assert created["line@canary"] == created["line@v0"]


def test_consumers_are_listed_without_their_tokens(fresh: Running) -> None:
    lineage, registry = Lineage.open(fresh.folder), ConsumerRegistry.open(fresh.folder)
    lineage.label("canary", 1)
    registry.add("ads", "canary", lineage.resolve, allowed=["v0"])
    fresh.service.refresh()
    (ads,) = fresh.get("/v1/consumers").json()["data"]
    assert set(ads) == {"name", "pinned", "version", "allowed", "since"}
    assert (ads["name"], ads["pinned"], ads["allowed"]) == ("ads", "canary", ["canary", "v0"])
    assert ads["version"] == 1


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


def test_no_refusal_names_a_folder(served: Running) -> None:
    asked: list[tuple[str, Any]] = [
        ("/v1/embeddings", {"input": 1, "model": "line@v9"}),
        ("/v1/embeddings", {"input": 1, "side": "nobody"}),
        ("/v1/embeddings", {"input": {"features": {"a": 1}}}),
        ("/v1/search", {"vector": [1.0], "version": 1}),
        ("/v1/search", {"vector": [1.0] * 10, "filter": {"a": 1}}),
        ("/v1/transform", {"vectors": [[1.0] * 7], "source": 2, "target": 0}),
        ("/v1/transform", {"vectors": [[1.0] * 6], "source": "stable", "target": 2}),
    ]
    for path, body in asked:
        answer = served.post(path, body)
        assert 400 <= answer.status_code < 500, answer.text
        for part in served.folder.parts[1:-1]:
            assert f"/{part}" not in answer.text


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


def test_health_readiness_and_unknown_pages_have_their_answers(served: Running) -> None:
    assert served.get("/healthz").json() == {"status": "ok"}
    assert served.get("/readyz").json() == {"ready": True, "version": 2, "problem": None}
    for answer in (served.get("/nowhere"), served.get("/v1/search")):
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert "openapi.json" in served.get("/nowhere").json()["error"]["message"]


def test_a_page_that_is_not_there_is_refused_like_all_else(served: Running) -> None:
    error = served.get("/v1/versions/").json()["error"]
    assert error["code"] == "http"
    assert "or not with a slash at its end" in error["message"]
    wrong_method = served.get("/v1/embeddings")
    assert wrong_method.status_code == 405
    assert wrong_method.headers["allow"] == "POST"
    assert "does not take that method" in wrong_method.json()["error"]["message"]


def test_a_store_that_does_not_answer_is_not_ready_and_says_so(fresh: Running) -> None:
    fresh.service.store_problem = "The store of side 'object' does not answer."
    answer = fresh.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {
        "ready": False,
        "version": 2,
        "problem": "The store of side 'object' does not answer.",
    }
    assert fresh.get("/healthz").status_code == 200


def test_the_service_is_closed_with_the_application(tmp_path: Path) -> None:
    with running(tmp_path / "line") as served:
        store: Any = served.service.shared.reader.store()
        assert not store.closed
    assert store.closed


def test_head_works_wherever_get_does(served: Running) -> None:
    answers = {(path, a.request.method): a for path, a in requests_of(served, "HEAD")}
    with_get = [path for path, method in answers if method == "GET"]
    assert len(with_get) >= 8
    for path in with_get:
        head, get = answers[path, "HEAD"], answers[path, "GET"]
        assert (head.status_code, head.content) == (get.status_code, b"") == (200, b"")
        assert head.headers["content-type"] == get.headers["content-type"]
    assert answers["/v1/search", "HEAD"].status_code == 405


ROOT = Path(__file__).parents[2]
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
        cwd=ROOT,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-6000:]
    statuses = json.loads(run.stdout)
    assert sum(statuses.values()) >= GENERATED
    for route in ("embeddings", "search", "transform"):
        assert statuses[f"/v1/{route} 200"] > 100, statuses
