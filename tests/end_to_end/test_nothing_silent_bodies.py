"""No body of a request takes the service down or keeps others out of it: promises 13 and 14."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest
from tests.support.arrow_requests import ARROW, stream
from tests.support.serving_process import (
    PATIENCE,
    newest_vectors,
    serving,
)

ROUTES = ("embeddings", "search", "transform")


# Bytes of a body, a little below the limit of a request.
MANY = 16 * 2**20 - 100


def hostile_bodies() -> dict[str, tuple[str, str, bytes]]:
    """Return requests by name: the route, the content type, and a body of sixteen megabytes."""

    def of(before: bytes, unit: bytes, after: bytes) -> bytes:
        return before + unit * ((MANY - len(before) - len(after)) // len(unit)) + after

    plain = "application/json"
    ids = of(b'{"ids": [', b"[],", b"[]]}")
    return {
        "input of lists": ("embeddings", plain, of(b'{"input": [', b"[],", b"[]]}")),
        "input of objects": ("embeddings", plain, of(b'{"input": [', b"{},", b"{}]}")),
        "one object": (
            "embeddings",
            plain,
            of(b'{"input": {"features": {"a": [', b"[],", b"[]]}}}"),
        ),
        "ids": ("search", plain, ids.replace(b"{", b'{"id": 1, ', 1)),
        "vectors": ("transform", plain, of(b'{"source": 1, "vectors": [', b"[],", b"[]]}")),
        "one vector": ("search", plain, of(b'{"vector": [', b"[],", b"[]]}")),
        "ids of a stream": (
            "search",
            ARROW,
            stream({"vector": newest_vectors()}, (ids[: 2**20] + b"[]]}").decode()),
        ),
    }


@pytest.mark.long
def test_14_one_body_exhausts_no_memory_and_stalls_nobody(two_versions: Path) -> None:
    bodies = hostile_bodies()
    with serving(two_versions) as served:
        assert served.post("embeddings", {"input": [1]}).status_code == 200
        before, stop, seconds = served.peak_memory(), threading.Event(), [0.0]

        def ask() -> None:
            with httpx.Client(base_url=served.url, timeout=PATIENCE) as http:
                while not stop.is_set():
                    started = time.monotonic()
                    assert http.post("/v1/embeddings", json={"input": [1]}).status_code == 200
                    seconds.append(time.monotonic() - started)

        other = threading.Thread(target=ask)
        other.start()
        try:
            for name, (route, kind, body) in bodies.items():
                answer = served.post(route, body, **{"Content-Type": kind})
                assert answer.status_code == 413, (name, answer.text)
                assert len(answer.content) < 1000
        finally:
            stop.set()
            other.join()
        assert served.alive
        # One such body once took gigabytes, and a sixteenth of it kept others waiting for 4.6 s.
        assert served.peak_memory() - before < 300 * 2**20
        assert max(seconds) < 3
