"""Around FastAPI's routing: a request for vectors goes straight to its endpoint.

FastAPI resolves dependencies and validates answers on every request; the routes of vectors have no
dependencies and send bytes that are made already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


class DirectRoutes:
    """Middleware that answers `POST` requests for some paths, and passes on all others.

    Args:
        app: the application that gets all other requests.
        endpoints: path to endpoint. The application should have the same routes: it describes
            them, and it gets these requests where a proxy puts a prefix before the path.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint]) -> None:
        self._app, self._endpoints = app, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["path"]) if scope["type"] == "http" else None
        if endpoint is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)
