"""Requests to the service over HTTP that it refuses, each with a status, a code and a sentence."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from tests.support.arrow_requests import ARROW, stream
from tests.support.serving_process import newest_vectors

JSON = "application/json"
EMBEDDINGS, SEARCH, TRANSFORM, FOLD_IN = (
    f"/v1/{route}" for route in ("embeddings", "search", "transform", "fold-in")
)


@dataclass(frozen=True)
class BadRequest:
    """One kind of bad request.

    Args:
        name: the kind.
        path: where it is sent.
        content: its body; None sends none, by GET.
        status, code: of the answer.
        names: words of the sentence.
        headers: beside those of a good request, or in their place.
    """

    name: str
    path: str
    content: bytes | None
    status: int
    code: str
    names: str = ""
    headers: dict[str, str] = field(default_factory=dict)


def posted(
    name: str, path: str, body: Any, status: int, code: str, names: str = "", **headers: str
) -> BadRequest:
    """Return the case of a body, of these bytes or as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    known = {"Content-Type": JSON}
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return BadRequest(name, path, content, status, code, names, {**known, **named})


def wrong(name: str, path: str, body: Any, names: str = "") -> BadRequest:
    """Return the case of a body that is no request."""
    return posted(name, path, body, 400, "request", names)


def arrow(name: str, path: str, body: bytes, names: str = "", code: str = "data") -> BadRequest:
    """Return the case of a body that says it is an Arrow stream."""
    return posted(name, path, body, 400, code, names, Content_Type=ARROW)


def asked(name: str, path: str, status: int, code: str, names: str = "", **headers: str) -> Any:
    """Return the case of a GET."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return BadRequest(name, path, None, status, code, names, named)


BOSS = {"Authorization": "Bearer boss"}
IDS = {"input": [1]}
VECTOR = {"version": 1, "vector": [0.5] * 8}
GOOD = stream({"vector": newest_vectors()}, {"version": 1})
MANY = 5000

REQUESTS = [
    wrong("no body", EMBEDDINGS, b""),
    wrong("a body of blanks", EMBEDDINGS, b"   "),
    wrong("half of JSON", EMBEDDINGS, b'{"input": [1'),
    wrong("JSON and more", EMBEDDINGS, b'{"input": [1]} x'),
    wrong("JSON in UTF-16", EMBEDDINGS, '{"input": [1]}'.encode("utf-16")),
    wrong("JSON in latin-1", EMBEDDINGS, '{"input": "é"}'.encode("latin-1")),
    wrong("a list", EMBEDDINGS, [1]),
    wrong("a number", EMBEDDINGS, 1),
    wrong("null", EMBEDDINGS, None),
    wrong("an empty object", EMBEDDINGS, {}, "input"),
    wrong("an unknown field", EMBEDDINGS, {**IDS, "limit": 3}, "limit"),
    wrong("no ids", EMBEDDINGS, {"input": []}, "input"),
    wrong("a null as input", EMBEDDINGS, {"input": None}, "input"),
    wrong("half an id", EMBEDDINGS, {"input": [1.5]}, "input"),
    wrong("a boolean as id", EMBEDDINGS, {"input": [True]}, "input"),
    wrong("ids of two types", EMBEDDINGS, {"input": [1, "b"]}, "input"),
    wrong("tokens as input", EMBEDDINGS, {"input": [[1, 2]]}, "tokens"),
    wrong("an id past 64 bits", EMBEDDINGS, {"input": [2**64]}, "input"),
    wrong("JSON nested too deep", EMBEDDINGS, b'{"input": ' + b"[" * 100_000),
    wrong("a comma too many", EMBEDDINGS, b'{"input": [1,]}'),
    wrong("an encoding that is none", EMBEDDINGS, {**IDS, "encoding_format": "hex"}, "encoding"),
    wrong("two versions", EMBEDDINGS, {**IDS, "model": "line@v0", "version": 1}, "version"),
    wrong("a version of floats", EMBEDDINGS, {**IDS, "version": 0.5}, "version"),
    wrong("a negative version", EMBEDDINGS, {**IDS, "version": -1}, "version"),
    posted("an id that is a word", EMBEDDINGS, {"input": ["a"]}, 404, "unknown_id", "a"),
    posted("an unknown id", EMBEDDINGS, {"input": [10**9]}, 404, "unknown_id", "1000000000"),
    posted(
        "an unknown version", EMBEDDINGS, {**IDS, "version": 7}, 404, "unknown_version", "7", **BOSS
    ),
    posted(
        "an unknown label", EMBEDDINGS, {**IDS, "version": "gold"}, 404, "unknown_version", **BOSS
    ),
    posted("an unknown model", EMBEDDINGS, {**IDS, "model": "other"}, 404, "unknown_version"),
    posted("an unknown side", EMBEDDINGS, {**IDS, "side": "user"}, 400, "lineage", "user"),
    posted("other dimensions", EMBEDDINGS, {**IDS, "dimensions": 3}, 400, "dimensions", "3"),
    posted("too many ids", EMBEDDINGS, {"input": list(range(MANY))}, 413, "limit", "2048"),
    posted("texts where ids are", EMBEDDINGS, {**IDS, "input_type": "query"}, 400, "request"),
    posted("a body of 20 MB", EMBEDDINGS, b" " * 20_000_000, 413, "limit"),
    posted(
        "a body of a form", EMBEDDINGS, b"input=1", 415, "media_type", Content_Type="text/plain"
    ),
    posted("a body of no type", EMBEDDINGS, IDS, 415, "media_type", Content_Type=""),
    posted(
        "a compressed body",
        EMBEDDINGS,
        b"\x1f\x8b",
        415,
        "media_type",
        "gzip",
        Content_Encoding="gzip",
    ),
    posted("another origin", EMBEDDINGS, IDS, 403, "origin", Origin="https://shop.example"),
    posted(
        "a token that nobody has", EMBEDDINGS, IDS, 401, "unknown_token", Authorization="Bearer no"
    ),
    posted("a token of another form", EMBEDDINGS, IDS, 401, "no_token", Authorization="Basic no"),
    posted("no token", EMBEDDINGS, IDS, 401, "no_token", "Authorization", Authorization=""),
    wrong("a search for nothing", SEARCH, {"version": 1}, "vector"),
    wrong("a search for two things", SEARCH, {**VECTOR, "id": 1}, "one of"),
    wrong("no results", SEARCH, {**VECTOR, "k": 0}, "k"),
    wrong("half a result", SEARCH, {**VECTOR, "k": 1.5}, "k"),
    wrong("an unknown metric", SEARCH, {**VECTOR, "metric": "hamming"}, "metric"),
    wrong("a vector of words", SEARCH, {"version": 1, "vector": ["a"] * 8}, "vector"),
    wrong("a vector NaN", SEARCH, b'{"version": 1, "vector": [NaN, 1, 1, 1, 1, 1, 1, 1]}'),
    wrong("an infinite vector", SEARCH, b'{"version": 1, "vector": [1e999, 1, 1, 1, 1, 1, 1, 1]}'),
    wrong("an empty vector", SEARCH, {"version": 1, "vector": []}, "vector"),
    wrong("no vectors", SEARCH, {"version": 1, "vectors": []}, "vectors"),
    posted("too many results", SEARCH, {**VECTOR, "k": 10**6}, 400, "limit", "1000"),
    posted("a vector of other dims", SEARCH, {"version": 1, "vector": [1.0]}, 400, "shape", "8"),
    posted(
        "vectors of two lengths",
        SEARCH,
        {"version": 1, "vectors": [[1.0] * 8, [1.0]]},
        400,
        "shape",
    ),
    posted("a vector past float32", SEARCH, {"version": 1, "vector": [1e300] * 8}, 400, "data"),
    posted(
        "a search at no version",
        SEARCH,
        {**VECTOR, "version": 9},
        404,
        "unknown_version",
        "9",
        **BOSS,
    ),
    posted("a search in no side", SEARCH, {**VECTOR, "side": "user"}, 400, "lineage", "user"),
    posted("a search for an unknown id", SEARCH, {"id": 10**9}, 404, "unknown_id"),
    posted("another fingerprint", SEARCH, {**VECTOR, "fingerprint": "x"}, 409, "fingerprint"),
    posted("a rerank without texts", SEARCH, {**VECTOR, "rerank": 20}, 400, "rerank", "rerank"),
    wrong("a transform of nothing", TRANSFORM, {"source": 1}, "vectors"),
    wrong("a transform from nowhere", TRANSFORM, {"vectors": [[0.5] * 8]}, "source"),
    posted(
        "a transform to no version",
        TRANSFORM,
        {"source": 1, "target": 9, "vectors": [[0.5] * 8]},
        404,
        "unknown_version",
        "9",
        **BOSS,
    ),
    posted(
        "a transform of other dims",
        TRANSFORM,
        {"source": 1, "target": 0, "vectors": [[0.5] * 3]},
        400,
        "shape",
        "8",
    ),
    arrow("a stream of no bytes", SEARCH, b""),
    arrow("a stream that is none", SEARCH, b"nothing of the kind" * 9),
    arrow("a stream cut in half", SEARCH, GOOD[: len(GOOD) // 2]),
    arrow("a stream of a later length", SEARCH, b"\xff\xff\xff\xff\xff\xff\xff\x7f" + GOOD[8:]),
    arrow(
        "a stream without its request",
        SEARCH,
        stream({"vector": newest_vectors()}, ""),
        "",
        "request",
    ),
    arrow(
        "a stream with half a request",
        SEARCH,
        stream({"vector": newest_vectors()}, '{"k": '),
        "",
        "request",
    ),
    arrow("a stream of another column", SEARCH, stream({"v": newest_vectors()}, {}), "vector"),
    arrow("a stream of two columns", SEARCH, stream({"vector": newest_vectors(), "b": [1]}, {})),
    arrow("a stream of words", SEARCH, stream({"vector": ["a"]}, {"version": 1}), "vector"),
    arrow(
        "a stream of no rows",
        SEARCH,
        stream({"vector": newest_vectors(0)}, {"version": 1}),
        "",
        "shape",
    ),
    arrow(
        "a stream with a null",
        SEARCH,
        stream({"vector": pa.array([None], pa.list_(pa.float32(), 8))}, {"version": 1}),
    ),
    arrow(
        "a stream of other dims",
        SEARCH,
        stream({"vector": newest_vectors()}, {"version": 0}),
        "6",
        "shape",
    ),
    arrow("a stream of ids past 64 bits", EMBEDDINGS, stream({"id": [1.5]}, {}), "id"),
    posted(
        "a stream with another fingerprint",
        SEARCH,
        stream({"vector": newest_vectors()}, {"version": 1}, "sha256:other"),
        409,
        "fingerprint",
        Content_Type=ARROW,
    ),
    posted("a fold-in as a stream", FOLD_IN, GOOD, 415, "request", Content_Type=ARROW),
    wrong("a fold-in of nothing", FOLD_IN, {"candidates": []}, "candidates"),
    posted("a fold-in of a lineage of files", FOLD_IN, {"candidates": [[1]]}, 400, "lineage"),
    asked("a path that is not there", "/v1/nothing", 404, "http"),
    asked("a path of files", "/v1/../../etc/passwd", 404, "http"),
    asked("a model that is not there", "/v1/models/other@v0", 404, "unknown_version", "other"),
    asked("consumer list without the right", "/v1/consumers", 403, "forbidden"),
    asked("metrics without the right", "/metrics", 403, "forbidden"),
    asked("a GET of a search", SEARCH, 405, "http"),
    posted("a POST of a list", "/v1/versions", {}, 405, "http"),
]
