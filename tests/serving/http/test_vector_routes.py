"""What the routes answer, against what the reader gives."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose
from tests.support.arrow_requests import post_stream, stream, table_of
from tests.support.lineages import DIMS, read_as, vectors_of
from tests.support.running_service import Running

from evergram.retrieval.reader import Reader


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("encoding", ["float", "base64"])
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
        ({"input": 1, "model": "line@nightly"}, 404, "unknown_version", "nightly"),
        ({"input": 1, "model": "line@v" + "9" * 200}, 404, "unknown_version", "no version"),
        ({"input": 1, "model": "other@v0"}, 404, "unknown_version", "'line@v0'"),
        ({"input": 1, "dimensions": 4}, 400, "dimensions", "10 dimensions"),
        ({"input": 1, "side": "query"}, 400, "lineage", "no side 'query'"),
        ({"input": [1, 900, 901]}, 404, "unknown_id", "2 of 3 ids"),
        ({"input": ["x"]}, 404, "unknown_id", "integers"),
        ({"input": []}, 400, "request", "input"),
        ({"input": 1, "sides": "x"}, 400, "request", "sides"),
        ({"input": 1, "model": "line", "version": 0}, 400, "request", "not in both"),
        ({"input": {"features": {"genre": "war"}}}, 400, "lineage", "no encoder"),
        ({"input": 2**63}, 400, "request", "less than 9223372036854775808"),
        ({"input": "x" * 2000}, 400, "request", "at most 1024 characters"),
        ({"input": {"features": {}, "genre": "war"}}, 400, "request", "not permitted"),
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


def test_dimensions_may_be_those_of_the_version(served: Running) -> None:
    asked = {"input": 1, "model": "line@v1", "dimensions": 8}
    assert served.post("/v1/embeddings", asked).status_code == 200


def test_missing_ids_may_be_zeros(served: Running) -> None:
    body = served.post("/v1/embeddings", {"input": [1, 900], "missing": "zeros"}).json()
    assert body["evergram"]["computed_from"] == [2, -1]
    assert body["data"][1]["embedding"] == [0] * 10


@pytest.mark.parametrize("other", ["005", "0" * 16 + "5", "+5", "-0", " 5", "5.0", "５", "9" * 19])
def test_an_integer_in_another_form_is_another_id(served: Running, other: str) -> None:
    """As in files: `evergram.ids`."""
    for asked in (other, [other], ["5", other]):
        answer = served.post("/v1/embeddings", {"input": asked})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_id")
        assert other in answer.json()["error"]["message"]
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
    assert served.post("/v1/search", {"id": 999}).status_code == 404


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
        ("/v1/search", {}, "request"),
        ("/v1/search", {"vector": [0.0] * 9}, "shape"),
        ("/v1/search", {"vectors": [[0.0] * 10, [0.0] * 9]}, "shape"),
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


def test_search_by_an_unknown_id_is_refused_with_advice(served: Running) -> None:
    answer = served.post("/v1/search", {"id": 900})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "unknown_id", "id")
    assert "'id_side'" in error["message"]
    assert "zeros" not in error["message"]
