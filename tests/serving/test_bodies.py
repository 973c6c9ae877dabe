"""Bodies of requests and answers: large, hostile, in pieces, as streams of Arrow and as JSON."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.testing import assert_allclose, assert_array_equal
from tests.support.arrow_requests import ARROW, post_stream, stream, table_of
from tests.support.lineages import DIMS, lineage_of, read_as, vectors_of
from tests.support.running_service import Running

from evergram.serving.features import MOST_FEATURES
from evergram.serving.http import json_body as json_pieces
from evergram.serving.http.body import FREE, PART, BodyBudget, HeldBody
from evergram.serving.http.call import (
    embeddings_json,
    transform_json,
    vector_columns,
    write_stream,
)
from evergram.serving.http.errors import RefusedError, error_response
from evergram.serving.http.json_body import ELEMENT, PIECE, cut_body, parse
from evergram.serving.http.request_schemas import (
    EmbeddingsRequest,
    SearchRequest,
    TransformRequest,
)
from evergram.serving.http.request_values import FEATURES, objects_of, vector_of
from evergram.serving.http.request_values import vectors_of as vectors_in
from evergram.serving.settings import ServiceSettings

LIMITS = ServiceSettings()


def large(asked: dict[str, Any]) -> bytes:
    """The request as JSON of more than one piece, with as much space as that takes."""
    body = json.dumps(asked).encode()
    return body.replace(b", ", b"," + b" " * (3 * PIECE // max(1, body.count(b", "))))


def post(served: Running, path: str, body: bytes) -> Any:
    assert len(body) > 2 * PIECE
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


def test_a_vector_may_be_longer_than_a_piece() -> None:
    vector = np.random.default_rng(0).normal(size=LIMITS.max_dim).tolist()
    body = json.dumps({"vectors": [vector, vector], "source": 0}).encode()
    assert len(body) > 5 * PIECE
    read = vectors_in(parse(TransformRequest, body, LIMITS), LIMITS)
    assert_array_equal(read, np.array([vector] * 2, np.float32))
    body = json.dumps({"vector": vector, "ids": []}).encode()
    read = vector_of(parse(SearchRequest, body, LIMITS), LIMITS)
    assert_array_equal(read, np.array([vector], np.float32))


FAR = list(range(1500))
ROW = [0.5] * 10


@pytest.mark.parametrize(
    ("path", "asked", "status", "words"),
    [
        ("/v1/embeddings", {"input": [*FAR, "a"]}, 400, "'input' is an id"),
        ("/v1/embeddings", {"input": [*FAR, {"features": {}}]}, 400, "'input' is an id"),
        ("/v1/embeddings", {"input": [*FAR, 2**63]}, 400, "less than 9223372036854775808"),
        ("/v1/embeddings", {"input": [*map(str, FAR), "x" * 2000]}, 400, "at most 1024"),
        ("/v1/embeddings", {"input": [*FAR, *FAR]}, 413, "more than the 2048"),
        ("/v1/search", {"id": 1, "ids": [*FAR, "a"]}, 400, "'ids.1500'"),
        ("/v1/search", {"vectors": [ROW] * 1000 + [[0.5, "x"]]}, 400, "'vectors.1000.1'"),
        ("/v1/search", {"vectors": [ROW] * 1000 + [ROW[:9]]}, 400, "not all of one length"),
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


def test_a_number_past_all_floats_is_refused(served: Running) -> None:
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
    for size in (PIECE - 100, ELEMENT - 100, 4 * 2**20):
        body = before + unit * (size // len(unit)) + after
        tracemalloc.start()
        try:
            with pytest.raises(RefusedError) as refused:
                parse(kind, body, LIMITS)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 32 * 2**20, size
        assert len(error_response(refused.value).body) < 1500


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
from evergram.serving.http.arrow_stream import read_stream
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


HALVES = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 10, pa.float32()), 10)


@pytest.mark.parametrize("route", ["embeddings", "search", "transform"])
def test_metadata_of_a_wrong_type_is_refused(served: Running, route: str) -> None:
    columns = {"id": pa.array([1])} if route == "embeddings" else {"vector": HALVES}
    for asked in ('{"fingerprint": 5}', '{"version": [[]]}', "[]", "null", "{", "\xff"):
        answer = post_stream(served, f"/v1/{route}", stream(columns, asked))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request"), asked


def test_a_stream_that_is_none_or_too_long_or_compressed_is_refused(served: Running) -> None:
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
        answer = post_stream(served, "/v1/embeddings", body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "data"), answer.text
    headers = {"Content-Type": f"{ARROW}; x=1"}
    assert served.http.post("/v1/embeddings", content=good, headers=headers).status_code == 200
    columns = {f"{n:03}{'x' * 500}": pa.array([1]) for n in range(50)}
    answer = post_stream(served, "/v1/embeddings", stream(columns, {}))
    assert "004xxx" in answer.text
    assert len(answer.content) < 1000


@pytest.mark.parametrize("path", ["/v1/search", "/v1/transform"])
def test_a_fingerprint_may_be_a_field_of_the_request(served: Running, path: str) -> None:
    lineage = served.service.shared.reader.lineage
    for version, status in ((2, 200), (0, 409)):
        named = {"source": 2, "target": 0} if path == "/v1/transform" else {"version": 2}
        asked = {**named, "fingerprint": lineage.manifest(version).fingerprint}
        body = stream({"vector": HALVES}, asked)
        assert post_stream(served, path, body).status_code == status
        assert served.post(path, {"vectors": [[0.5] * 10], **asked}).status_code == status


@pytest.mark.long
def test_mutated_streams_are_refused_and_end_nothing(tmp_path: Path) -> None:
    lineage_of(tmp_path / "numbers", rows=30)
    lineage_of(tmp_path / "texts", rows=30, text=True)
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.mutated_streams", str(tmp_path), str(STREAMS), "0"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=900,
        check=False,
    )
    last = (tmp_path / "last").read_bytes()
    assert run.returncode == 0, (run.returncode, last, run.stderr[-4000:])
    statuses = json.loads(run.stdout)
    assert sum(statuses.values()) == STREAMS
    assert {name.split()[1] for name in statuses} <= {"200", "400", "404", "409", "413"}, statuses
    for route in ("embeddings", "search", "transform"):
        # Neither is all of it refused at the first look, nor is nothing damaged.
        assert statuses[f"{route} 200"] > 500, statuses
        assert statuses[f"{route} 400"] > 500, statuses


def test_flipped_bits_of_a_stream_are_never_a_server_error(served: Running) -> None:
    whole = stream({"vector": pa.concat_arrays([HALVES] * 3)}, {"version": 2, "k": 1})
    draw = np.random.default_rng(0)
    for _ in range(60):
        bad = bytearray(whole)
        for at in draw.integers(0, len(bad), size=3):
            bad[at] ^= 1 << int(draw.integers(8))
        assert post_stream(served, "/v1/search", bytes(bad)).status_code < 500


class Sent:
    """A request of these chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks

    async def stream(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


def test_bodies_take_of_the_budget_what_they_hold_until_the_last_holder_leaves() -> None:
    budget = BodyBudget(1000)

    def read(*chunks: bytes, of: BodyBudget = budget) -> HeldBody:
        body, sent = HeldBody(of), cast(Any, Sent(*chunks))
        asyncio.run(body.read(sent, 10**9, 5.0))
        return body

    read(b"x" * FREE)
    assert budget.held == 0
    large = read(b"x" * FREE, b"y" * 100)
    assert budget.held == 100 + PART
    with pytest.raises(RefusedError) as refusal:
        read(b"x" * (FREE + 1000))
    assert (refusal.value.status, refusal.value.code) == (503, "busy")
    large.hold()
    large.leave()
    assert budget.held == 100 + PART
    large.leave()
    assert budget.held == 0
    wide = BodyBudget(10**9)
    read(*[b"x"] * 3000, of=wide)
    assert wide.held == 3000 + 2999 * PART - FREE


TEXT = st.text(st.sampled_from('ab"\\[]{},: é\n'), max_size=8)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=20,
)
OBJECT = st.dictionaries(TEXT, VALUE, max_size=5)
SPACED = st.sampled_from([(",", ":"), (" ,\n ", " : ")])


def many(_: str) -> int:
    return 10**6


def joined(body: bytes) -> Any:
    """What the pieces of a body say. Raises: ValueError: one of them is not JSON."""
    cut = cut_body(body, many, many)
    whole = json.loads(cut.short)
    if not isinstance(whole, dict):
        raise ValueError("no object")
    for name, pieces in cut.lists.items():
        elements = [json.loads(piece.text) for piece in pieces]
        if [len(e) for e in elements] != [piece.count for piece in pieces]:
            raise ValueError("a comma too many")
        if isinstance(whole[name], list):
            assert whole[name] == [x for part in elements for x in part][:1]
            whole[name] = [x for part in elements for x in part]
    return whole


@pytest.fixture(params=[1, 7])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of a piece, and of what is looked at at once."""
    monkeypatch.setattr(json_pieces, "PIECE", request.param)
    return int(request.param)


@pytest.mark.usefixtures("size")
@settings(deadline=None, max_examples=30)
@given(whole=OBJECT, separators=SPACED, ascii_only=st.booleans())
def test_the_pieces_are_the_whole(
    whole: Any, separators: tuple[str, str], ascii_only: bool
) -> None:
    body = json.dumps(whole, separators=separators, ensure_ascii=ascii_only).encode()
    assert joined(body) == whole


@pytest.mark.usefixtures("size")
@settings(deadline=None, max_examples=30)
@given(
    whole=OBJECT,
    places=st.lists(st.tuples(st.integers(0, 200), st.sampled_from(b'[]{},":\\ 1')), max_size=4),
    replace=st.booleans(),
)
def test_a_body_that_is_not_json_is_refused_in_pieces_too(
    whole: Any, places: list[tuple[int, int]], replace: bool
) -> None:
    text = bytearray(json.dumps(whole).encode())
    for place, sign in places:
        at = place % len(text)
        text[at : at + replace] = bytes([sign])
    body = bytes(text)
    try:
        expected = json.loads(body)
    except ValueError:
        expected = None
    if isinstance(expected, dict):
        assert joined(body) == expected
    else:
        with pytest.raises((ValueError, RefusedError)):
            joined(body)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"input": [' + b"[]," * 99 + b"[]]}", 413),
        (b'{"input": [' + b"*," * 99 + b"*]}", 413),
        (b'{"input": [1, "' + b"x" * 200 + b'"]}', 413),
        (b'{"user": "' + b"x" * 200 + b'", "input": [1]}', 413),
        (b'{"input": {' + b'"a": 1, ' * 40 + b'"b": 2}}', 413),
        *(
            (body, 400)
            for body in (
                b"[[1, 2], [3]]",
                b'{"a": [1}',
                b'{"a": [1]',
                b'{"a": "',
                b'{"a": [1]}}',
                b'{"a": [1]}{"a": [1]}',
                b"{[1, 2]}",
                b'{"a": [1], 5: [2]}',
                b"{" + b'"a":1,' * 70 + b'"b":2}',
            )
        ),
    ],
)
def test_a_body_past_a_limit_or_of_no_object_is_refused_unparsed(body: bytes, status: int) -> None:
    with pytest.raises(RefusedError) as refused:
        cut_body(body, lambda _: 99, lambda _: 100 if status == 413 else 10**6)
    assert refused.value.status == status


FLOATS = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=9),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@given(FLOATS, st.sampled_from(["none", "int64", "string"]))
def test_a_stream_of_vectors_is_read_by_arrow(vectors: np.ndarray, ids: str) -> None:
    sources = pa.array(np.arange(len(vectors)))
    column = None if ids == "none" else pa.array(np.arange(len(vectors)) * 7 - 3).cast(ids)
    metadata = {"evergram.model": "shop@v1", "evergram.version": "1"}
    columns = vector_columns(column, vectors, sources.to_numpy())
    with pa.ipc.open_stream(write_stream(columns, metadata)) as reader:
        (batch,) = list(reader)
    batch.validate(full=True)
    assert batch.schema.metadata == {k.encode(): v.encode() for k, v in metadata.items()}
    assert batch.schema.names == [*columns]
    assert column is None or batch["id"].equals(column)
    assert_array_equal(np.array(batch["vector"].to_pylist(), np.float32), vectors)
    assert batch["computed_from"].equals(sources)


@given(FLOATS, st.booleans(), st.booleans())
def test_an_answer_is_json(vectors: np.ndarray, as_base64: bool, turned: bool) -> None:
    sources = np.arange(len(vectors))
    given_vectors = np.asfortranarray(vectors) if turned else vectors
    body = json.loads(embeddings_json(given_vectors, sources, {"version": 1}, 'a"b', as_base64))
    assert body["model"] == 'a"b'
    assert body["evergram"] == {"version": 1, "computed_from": sources.tolist()}
    assert [row["index"] for row in body["data"]] == sources.tolist()
    for row, vector in zip(body["data"], vectors, strict=True):
        numbers = row["embedding"]
        if as_base64:
            numbers = np.frombuffer(base64.b64decode(numbers), "<f4")
        assert (np.asarray(numbers, dtype=np.float32) == vector).all()
    numbers = json.loads(transform_json(vectors, sources, {}, "m"))["vectors"]
    assert (np.asarray(numbers, dtype=np.float32) == vectors).all()
