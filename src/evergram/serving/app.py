"""The application: routes, and what holds for all of them."""

# No postponed annotations here: FastAPI reads them.
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version as release
from typing import Any, TypeAlias

from fastapi import FastAPI, HTTPException, Request, Response
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from evergram.errors import EvergramError
from evergram.serving.dashboard import page
from evergram.serving.dashboard.schemas import DashboardData
from evergram.serving.http import listing_routes, vector_routes
from evergram.serving.http.errors import RefusedError, say
from evergram.serving.http.host_check import HostCheck
from evergram.serving.http.openapi import describe, errors, vectors
from evergram.serving.http.request_handler import Front, Operation
from evergram.serving.http.schemas import (
    ConsumersAnswer,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    Health,
    ModelAnswer,
    ModelsAnswer,
    Ready,
    SearchAnswer,
    SearchRequest,
    TransformAnswer,
    TransformRequest,
    VersionsAnswer,
)
from evergram.serving.service import Service
from evergram.serving.settings import Settings

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}


Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


class _Direct:
    """Calls the routes of vectors before FastAPI looks for what is asked for: that takes time, as
    answers of a millisecond go, and they need nothing of what it finds."""

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint]) -> None:
        self._app, self._endpoints = app, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._endpoints.get(scope["path"]) if scope["type"] == "http" else None
        if found is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        response = await found(Request(scope, receive, send))
        await response(scope, receive, send)


def create_app(service: Service, settings: Settings | None = None) -> FastAPI:
    """The service as an ASGI application. It closes the service when it is shut down.

    Raises: ServiceError: others can reach it, and it has no tokens; an allowed host is none.
    """
    settings = Settings() if settings is None else settings
    with service.entered() as state:
        settings.check(state.tokens)
    front = Front(service, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(front.watch())
        yield
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await asyncio.to_thread(front.close)

    app = FastAPI(
        title="Evergram",
        summary="Embeddings at the version that each consumer was built on.",
        version=release("evergram"),
        lifespan=lifespan,
        # These pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # A redirect would name the host that was asked for, whoever asked.
        redirect_slashes=False,
        responses=errors(403, 421),
    )
    app.state.front = front
    _vector_routes(app, front)
    _listing_routes(app, front)
    _health_routes(app, front)
    _dashboard(app, front)
    _refusals(app)
    # Added last, it is asked first.
    app.add_middleware(
        HostCheck, settings=settings, tokens=lambda: service.tokens, refused=front.refused
    )
    describe(app, settings)
    return app


def _vector_routes(app: FastAPI, front: Front) -> None:
    endpoints: dict[str, Endpoint] = {}

    def add(name: str, operation: Operation, summary: str, described: dict[str, Any]) -> None:
        path = f"/v1/{name}"

        async def endpoint(request: Request) -> Response:
            return await front.answer(request, path, operation)

        # Also for FastAPI, which describes it, and finds it behind a prefix of a proxy.
        app.post(path, name=name, summary=summary, **described)(endpoint)
        endpoints[path] = endpoint

    add(
        "embeddings",
        vector_routes.embeddings,
        "Embeddings of ids, or of features",
        vectors(EmbeddingsRequest, EmbeddingsAnswer, "id"),
    )
    add(
        "search",
        vector_routes.search,
        "The nearest stored objects",
        vectors(SearchRequest, SearchAnswer, "vector"),
    )
    add(
        "transform",
        vector_routes.transform,
        "Vectors of one version as another reads them",
        vectors(TransformRequest, TransformAnswer, "vector"),
    )
    app.add_middleware(_Direct, endpoints=endpoints)


def _listing_routes(app: FastAPI, front: Front) -> None:
    refused = errors(400, 401, 500, 503, 504)

    @app.get(
        "/v1/versions",
        summary="Versions that may be read",
        responses={200: {"model": VersionsAnswer}, **refused},
    )
    async def versions(request: Request) -> Response:
        return await front.list(request, "/v1/versions", listing_routes.versions)

    @app.get(
        "/v1/consumers",
        summary="Who is pinned to which version",
        responses={200: {"model": ConsumersAnswer}, **refused},
    )
    async def consumers(request: Request) -> Response:
        return await front.list(request, "/v1/consumers", listing_routes.consumers)

    @app.get(
        "/v1/models",
        summary="Versions and labels, as OpenAI lists models",
        responses={200: {"model": ModelsAnswer}, **refused},
    )
    async def models(request: Request) -> Response:
        return await front.list(request, "/v1/models", listing_routes.models)

    @app.get(
        "/v1/models/{model}",
        summary="One of them",
        responses={200: {"model": ModelAnswer}, **errors(404), **refused},
    )
    async def model(request: Request, model: str) -> Response:
        return await front.list(
            request, "/v1/models/{model}", lambda s, a: listing_routes.model(s, a, model)
        )


def _health_routes(app: FastAPI, front: Front) -> None:
    service = front.service

    @app.get("/healthz", summary="Whether the process lives")
    async def healthz() -> Health:
        return Health(status="ok")

    @app.get(
        "/readyz",
        summary="Whether requests are answered",
        responses={200: {"model": Ready}, 503: {"model": Ready}},
    )
    async def readyz() -> Response:
        ready = service.store_problem is None
        found = Ready(
            ready=ready,
            version=service.production,
            problem=service.store_problem or service.problem,
        )
        return JSONResponse(found.model_dump(), 200 if ready else 503)

    @app.get(
        "/metrics",
        summary="For Prometheus",
        response_class=Response,
        responses={**_TEXT, **errors(400, 401)},
    )
    async def metrics(request: Request) -> Response:
        return front.metrics_page(request)


def _dashboard(app: FastAPI, front: Front) -> None:
    async def shown(request: Request) -> DashboardData:
        return await front.dashboard(request)

    app.include_router(page.router(shown), responses=errors(400, 401, 500, 503))


def _refusals(app: FastAPI) -> None:
    """What Starlette refuses by itself has the same form."""

    async def refused(_: Request, error: Any) -> Response:
        sentences = {
            404: "There is no such page, or not with a slash at its end; /openapi.json describes "
            "those that there are.",
            405: "This page does not take that method; /openapi.json says which it takes.",
        }
        sentence = sentences.get(error.status_code, str(error.detail))
        said = say(RefusedError(error.status_code, "http", sentence))
        headers = {**said.headers, **(error.headers or {})}
        return Response(said.body, said.status, headers, vector_routes.JSON)

    async def failed(_: Request, error: Exception) -> Response:
        said = say(error)
        return Response(said.body, said.status, said.headers, vector_routes.JSON)

    app.add_exception_handler(HTTPException, refused)
    for status in (404, 405):
        app.add_exception_handler(status, refused)
    app.add_exception_handler(EvergramError, failed)
    app.add_exception_handler(Exception, failed)
