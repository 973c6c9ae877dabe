"""Large requests are answered as small ones are, and what is wrong with them is found as early."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.support.arrow_requests import post_stream, stream, table_of
from tests.support.lineages import DIMS, read_as, vectors_of
from tests.support.running_service import Running, running

from evergram.serving.http.answers.errors import RefusedError, error_response
from evergram.serving.http.fast_paths.json_pieces import PIECE
from evergram.serving.http.requests.ids import FEATURES, objects_of
from evergram.serving.http.requests.parsing import ELEMENT, parse
from evergram.serving.http.requests.schemas import (
    EmbeddingsRequest,
    SearchRequest,
    TransformRequest,
)
from evergram.serving.object_features import MOST_FEATURES
from evergram.serving.settings import ServiceSettings

LIMITS = ServiceSettings()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("parsing") / "line") as served:
        yield served


def large(asked: dict[str, Any]) -> bytes:
    """The request as JSON of more than one piece, with as much space as that takes."""
    body = json.dumps(asked).encode()
    return body.replace(b", ", b"," + b" " * (3 * PIECE // max(1, body.count(b", "))))


def post(served: Running, path: str, body: bytes) -> Any:
    assert len(body) > 2 * PIECE
    return served.http.post(path, content=body, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("text", [False, True])
def test_many_ids_are_embedded(served: Running, text: bool) -> None:
    ids = [n % 300 for n in range(2048)]
    sent_ids = [str(n) for n in ids] if text else ids
    answer = post(served, "/v1/embeddings", large({"input": sent_ids, "version": "v0"}))
    assert answer.status_code == 200, answer.text
    rows = [row["embedding"] for row in answer.json()["data"]]
    assert_allclose(rows, read_as(2, 0).numpy()[ids], rtol=1e-4, atol=1e-5)


def test_many_vectors_are_transformed(served: Running) -> None:
    vectors = np.resize(vectors_of(2).numpy(), (2048, DIMS[2]))
    asked = {"vectors": vectors.astype(float).tolist(), "source": 2, "target": 0}
    answer = post(served, "/v1/transform", large(asked))
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMS[2])
    body = stream({"vector": column}, {"source": 2, "target": 0})
    expected = table_of(post_stream(served, "/v1/transform", body))["vector"].to_pylist()
    assert_allclose(answer.json()["vectors"], expected, rtol=1e-6)


@pytest.mark.parametrize("by", ["vector", "vectors"])
def test_many_are_searched_among_many(served: Running, by: str) -> None:
    query = vectors_of(1).numpy()[0].tolist()
    asked = {"ids": list(range(2048)), "k": 4, "version": 1}
    queries = query if by == "vector" else [query, query]
    answer = post(served, "/v1/search", large({**asked, by: queries}))
    assert answer.status_code == 200, answer.text
    expected = served.post("/v1/search", {by: queries, "k": 4, "version": 1}).json()
    assert answer.json()["data"] == expected["data"]
    # The same ids, in the metadata of a stream.
    column = pa.FixedSizeListArray.from_arrays(pa.array(query, pa.float32()), DIMS[1])
    body = stream({"vector": column}, large(asked).decode())
    table = table_of(post_stream(served, "/v1/search", body))
    assert table["id"].to_pylist() == [hit["id"] for hit in expected["data"][0]["hits"]]


def test_a_vector_longer_than_a_piece() -> None:
    vector = np.random.default_rng(0).normal(size=LIMITS.max_dim).tolist()
    body = json.dumps({"vectors": [vector, vector], "source": 0}).encode()
    assert len(body) > 5 * PIECE
    parsed = parse(TransformRequest, body, LIMITS)
    from evergram.serving.http.requests.ids import vector_of, vectors_of

    assert_array_equal(vectors_of(parsed, LIMITS), np.array([vector] * 2, np.float32))
    body = json.dumps({"vector": vector, "ids": []}).encode()
    assert_array_equal(
        vector_of(parse(SearchRequest, body, LIMITS), LIMITS), np.array([vector], np.float32)
    )


FAR = list(range(1500))
ROW = [0.5] * 10


@pytest.mark.parametrize(
    ("path", "asked", "status", "words"),
    [
        ("/v1/embeddings", {"input": [*FAR, "a"]}, 400, "'input' is an id"),
        ("/v1/embeddings", {"input": [*map(str, FAR), 1]}, 400, "'input' is an id"),
        ("/v1/embeddings", {"input": [*FAR, {"features": {}}]}, 400, "'input' is an id"),
        ("/v1/embeddings", {"input": [*FAR, None]}, 400, "'input' is an id"),
        ("/v1/embeddings", {"input": [*FAR, 2**63]}, 400, "less than 9223372036854775808"),
        ("/v1/embeddings", {"input": [*map(str, FAR), "x" * 2000]}, 400, "at most 1024"),
        ("/v1/embeddings", {"input": FAR, "sides": "x"}, 400, "sides"),
        ("/v1/embeddings", {"input": [*FAR, *FAR]}, 413, "more than the 2048"),
        ("/v1/search", {"id": 1, "ids": [*FAR, "a"]}, 400, "'ids.1500'"),
        ("/v1/search", {"vectors": [ROW] * 1000 + [[0.5, "x"]]}, 400, "'vectors.1000.1'"),
        ("/v1/search", {"vectors": [ROW] * 1000 + [[]]}, 400, "'vectors.1000'"),
        ("/v1/search", {"vectors": [ROW] * 1000 + [ROW[:9]]}, 400, "not all of one length"),
        ("/v1/search", {"vectors": [ROW[:9], *[ROW] * 1000]}, 400, "not all of one length"),
        ("/v1/search", {"vector": [0.5] * 20_000}, 413, "more than the 16384"),
        ("/v1/search", {"vectors": [[0.5] * 20_000] * 2}, 413, "at most 16384"),
        ("/v1/search", {"vectors": [ROW] * 1000, "id": 1}, 400, "give one of"),
        ("/v1/transform", {"vectors": [ROW] * 1000}, 400, "source"),
    ],
)
def test_a_wrong_element_is_refused_wherever_it_stands(
    served: Running, path: str, asked: dict[str, Any], status: int, words: str
) -> None:
    answer = post(served, path, large(asked))
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("good", "bad"),
    [(b"[0,", b"[,0,"), (b"1499]", b"1499,]"), (b"1400,", b"1400,,"), (b"1400,", b"1400 ")],
)
def test_a_comma_too_many_is_found(served: Running, good: bytes, bad: bytes) -> None:
    body = large({"input": FAR})
    assert good in body
    answer = post(served, "/v1/embeddings", body.replace(good, bad))
    assert answer.status_code == 400
    assert "JSON" in answer.json()["error"]["message"]


def test_a_number_past_all_floats_is_refused(served: Running) -> None:
    """As in a small request."""
    body = large({"vectors": [ROW] * 1000 + [[*ROW[:9], 7.25]], "source": 2})
    for big in (b"1e999", b"-1e999"):
        answer = post(served, "/v1/transform", body.replace(b"7.25", big))
        assert answer.status_code == 400
        assert "'vectors.1000.9'" in answer.json()["error"]["message"]


def objects(*, count: int, features: int) -> bytes:
    one = {"features": {str(n): n for n in range(features)}}
    return json.dumps({"input": [one] * count}).encode()


def test_objects_have_so_many_features_and_no_more() -> None:
    at_most = LIMITS.max_batch * FEATURES
    count = at_most // MOST_FEATURES
    good = parse(EmbeddingsRequest, objects(count=count, features=MOST_FEATURES), LIMITS)
    assert len(objects_of(good, LIMITS)) == count
    more = parse(EmbeddingsRequest, objects(count=count + 1, features=MOST_FEATURES), LIMITS)
    with pytest.raises(RefusedError, match=f"more than {at_most} features"):
        objects_of(more, LIMITS)
    with pytest.raises(RefusedError, match=f"at most {MOST_FEATURES} features"):
        parse(EmbeddingsRequest, objects(count=1, features=MOST_FEATURES + 1), LIMITS)


def filled(before: bytes, unit: bytes, after: bytes, size: int) -> bytes:
    return before + unit * (size // len(unit)) + after


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
@pytest.mark.parametrize("size", [4000, PIECE - 100, ELEMENT - 100, 4 * 2**20])
def test_a_refused_request_takes_little_memory(
    kind: Any, before: bytes, unit: bytes, after: bytes, size: int
) -> None:
    """Of what is small, no more than its first error is made; of what is large, nothing."""
    body = filled(before, unit, after, size)
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError) as refused:
            parse(kind, body, LIMITS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 * 2**20
    assert len(error_response(refused.value).body) < 1500


def test_a_sentence_is_of_a_readable_length(served: Running) -> None:
    """Also where it repeats what was asked; looking for addresses takes its length squared."""
    for asked in ({"x" * 60_000: 1}, {"a.b:" * 15_000: 1}, {"input": 1, "y" * 60_000: [1]}):
        answer = served.post("/v1/embeddings", asked)
        assert answer.status_code == 400
        assert len(answer.content) < 1500
    answer = served.post("/v1/embeddings", {"input": {"features": {"a.b:/" * 12_000: 1}}})
    assert answer.status_code == 400
    assert len(answer.content) < 2500


def test_a_stream_has_no_more_batches_than_rows(served: Running) -> None:
    schema = pa.schema([("id", pa.int64())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for _ in range(LIMITS.max_batch + 1):
            writer.write_batch(pa.record_batch([pa.array([], pa.int64())], schema))
    answer = post_stream(served, "/v1/embeddings", sink.getvalue().to_pybytes())
    assert answer.status_code == 400
    assert "more than 2048 rows or batches" in answer.json()["error"]["message"]
