"""Each kind of bad request is answered with a status, a code and a sentence, and the service lives.

The refusals of `evergram serve` itself are in test_bad_input.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.arrow_requests import ARROW, stream
from tests.support.command import exit_code
from tests.support.lineages import lineage_of
from tests.support.serving_process import newest_vectors, serving

from evergram.lineage.consumers import ConsumerRegistry

BOSS = {"Authorization": "Bearer boss"}
IDS = {"input": [1]}
VECTOR = {"version": 1, "vector": [0.5] * 8}
GOOD = stream({"vector": newest_vectors()}, {"version": 1})
STREAM = {"Content-Type": ARROW}
# By route: the body (None is a GET), the status, the code, what the sentence names, and headers
# beside those of a good request, or in their place.
REQUESTS: dict[str, list[tuple[Any, ...]]] = {
    "/v1/embeddings": [
        (b"", 400, "request"),
        (b'{"input": [1', 400, "request"),
        ('{"input": "é"}'.encode("latin-1"), 400, "request"),
        ([1], 400, "request"),
        ({}, 400, "request", "input"),
        ({**IDS, "limit": 3}, 400, "request", "limit"),
        ({"input": [1.5]}, 400, "request", "input"),
        ({"input": [[1, 2]]}, 400, "request", "tokens"),
        (b'{"input": ' + b"[" * 100_000, 400, "request"),
        ({**IDS, "model": "line@v0", "version": 1}, 400, "request", "version"),
        ({"input": ["a"]}, 404, "unknown_id", "a"),
        ({**IDS, "version": 7}, 404, "unknown_version", "7", BOSS),
        ({**IDS, "model": "other"}, 404, "unknown_version"),
        ({**IDS, "side": "user"}, 400, "lineage", "user"),
        ({**IDS, "dimensions": 3}, 400, "dimensions", "3"),
        ({"input": list(range(5000))}, 413, "limit", "2048"),
        (b" " * 20_000_000, 413, "limit"),
        (b"input=1", 415, "media_type", "", {"Content-Type": "text/plain"}),
        (b"\x1f\x8b", 415, "media_type", "gzip", {"Content-Encoding": "gzip"}),
        (IDS, 403, "origin", "", {"Origin": "https://shop.example"}),
        (IDS, 401, "unknown_token", "", {"Authorization": "Bearer no"}),
        (IDS, 401, "no_token", "Authorization", {"Authorization": ""}),
        (stream({"id": [1.5]}, {}), 400, "data", "id", STREAM),
    ],
    "/v1/search": [
        ({"version": 1}, 400, "request", "vector"),
        ({**VECTOR, "id": 1}, 400, "request", "one of"),
        ({**VECTOR, "metric": "hamming"}, 400, "request", "metric"),
        (b'{"version": 1, "vector": [NaN, 1, 1, 1, 1, 1, 1, 1]}', 400, "request"),
        ({**VECTOR, "k": 10**6}, 400, "limit", "1000"),
        ({"version": 1, "vector": [1.0]}, 400, "shape", "8"),
        ({"version": 1, "vector": [1e300] * 8}, 400, "data"),
        ({**VECTOR, "fingerprint": "x"}, 409, "fingerprint"),
        ({**VECTOR, "rerank": 20}, 400, "rerank", "rerank"),
        (b"", 400, "data", "", STREAM),
        (GOOD[: len(GOOD) // 2], 400, "data", "", STREAM),
        (stream({"vector": newest_vectors()}, ""), 400, "request", "", STREAM),
        (stream({"v": newest_vectors()}, {}), 400, "data", "vector", STREAM),
        (stream({"vector": newest_vectors()}, {"version": 0}), 400, "shape", "6", STREAM),
        (None, 405, "http"),
    ],
    "/v1/transform": [
        ({"vectors": [[0.5] * 8]}, 400, "request", "source"),
        ({"source": 1, "target": 0, "vectors": [[0.5] * 3]}, 400, "shape", "8"),
    ],
    "/v1/fold-in": [
        (GOOD, 415, "request", "", STREAM),
        ({"candidates": [[1]]}, 400, "lineage"),
    ],
    "/v1/../../etc/passwd": [(None, 404, "http")],
    "/v1/dashboard": [(None, 403, "forbidden")],
    "/metrics": [(None, 403, "forbidden")],
}


@pytest.mark.usefixtures("evergram")
def test_bad_requests_are_refused_in_a_sentence_and_the_service_lives(tmp_path: Path) -> None:
    folder = tmp_path / "line"
    lineage_of(folder, versions=2)
    assert exit_code("consumer", "add", folder, "ads", "--pin", "v0", "--allow", "v1") == 0
    own = {"Authorization": f"Bearer {ConsumerRegistry.open(folder).issue_token('ads')}"}
    with serving(folder, EVERGRAM_ADMIN_TOKEN="boss") as served:
        for path, requests in REQUESTS.items():
            for body, status, code, *more in requests:
                names = more[0] if more else ""
                headers = more[1] if len(more) > 1 else {}
                content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
                given = {"Content-Type": "application/json", **own, **headers}
                method = "GET" if body is None else "POST"
                answer = served.http.request(method, path, content=content, headers=given)
                assert answer.status_code == status, (path, more, answer.text)
                error = answer.json()["error"]
                assert error["code"] == code, error
                assert error["message"].endswith((".", "?"))
                assert "\n" not in error["message"]
                assert names in error["message"]
        assert served.post("embeddings", IDS, **own).status_code == 200
    assert "Traceback" not in served.log
    assert "A request failed" not in served.log
