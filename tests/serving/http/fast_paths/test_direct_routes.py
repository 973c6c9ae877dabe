"""Requests that go around FastAPI's routing, and those that do not."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from starlette.testclient import TestClient

from evergram.serving.http.fast_paths.direct_routes import DirectRoutes


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("POST", "/direct", "direct"),
        ("GET", "/direct", "routed"),
        ("POST", "/direct/", "404"),
        ("POST", "/other", "routed"),
    ],
)
def test_only_posts_to_a_direct_path_go_around(method: str, path: str, answer: str) -> None:
    app = FastAPI(redirect_slashes=False)

    async def routed(request: Request) -> Response:
        return Response("routed")

    async def direct(request: Request) -> Response:
        assert await request.body() == (b"body" if method == "POST" else b"")
        return Response("direct")

    app.get("/direct")(routed)
    app.post("/other")(routed)
    app.add_middleware(DirectRoutes, endpoints={"/direct": direct})
    content: Any = b"body" if method == "POST" else None
    with TestClient(app) as http:
        response = http.request(method, path, content=content)
    assert (response.text if response.status_code == 200 else str(response.status_code)) == answer
