"""The ASGI application: its routes, its middleware, its handling of errors."""

# No postponed annotations here: FastAPI reads them.
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version as release
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from evergram.errors import EvergramError
from evergram.serving.dashboard import page
from evergram.serving.dashboard.schemas import DashboardData
from evergram.serving.http import listing_routes, vector_routes
from evergram.serving.http.access import HostCheck, refusal_response
from evergram.serving.http.errors import RefusedError, error_response
from evergram.serving.http.openapi import (
    ConsumersAnswer,
    EmbeddingsAnswer,
    Liveness,
    ModelAnswer,
    ModelsAnswer,
    Ready,
    SearchAnswer,
    TransformAnswer,
    VersionsAnswer,
    describe,
    errors,
    vectors,
)
from evergram.serving.http.request_handler import Listing, Operation, RequestHandler
from evergram.serving.http.request_schemas import (
    EmbeddingsRequest,
    FoldInRequest,
    SearchRequest,
    TransformRequest,
)
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.serving.traces import RequestSpans
from evergram.tracing import tracer

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}
_NOT_FOUND = {
    404: "There is no such page, or not with a slash at its end; /openapi.json describes all.",
    405: "This page does not take that method; /openapi.json says which it takes.",
}


class HeadAsGet:
    """Middleware that answers HEAD as GET, whose body the server then leaves out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


def create_app(service: Service, settings: ServiceSettings | None = None) -> FastAPI:
    """Return a service as an ASGI application, which closes the service when it is shut down.

    Raises: ServiceError: as `ServiceSettings.check`.
    """
    settings = ServiceSettings() if settings is None else settings
    with service.entered() as state:
        settings.check(state.tokens)
    handler = RequestHandler(service, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = [asyncio.create_task(handler.refresher.watch())]
        if service.texts is not None:
            watching.append(asyncio.create_task(service.texts.watch()))
        yield
        for task in watching:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(handler.close)

    app = FastAPI(
        title="Evergram",
        summary="Embeddings at the version that each consumer was built on.",
        version=release("evergram"),
        lifespan=lifespan,
        # FastAPI's pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # A redirect would repeat the host of the request, whoever sent it.
        redirect_slashes=False,
        # Its own span of a request would be a second one. FastAPI before 0.165 has none.
        telemetry={"tracing": tracer() is None},
        responses=errors(403, 421),
    )
    app.state.handler = handler
    _vector_routes(app, handler)
    _listing_routes(app, handler)
    _health_routes(app, handler)
    _refusals(app)
    # The middleware that is added last runs first.
    app.add_middleware(HeadAsGet)
    app.add_middleware(
        HostCheck,
        settings=settings,
        tokens=lambda: service.tokens,
        refused=handler.count_refusal,
    )
    if (recording := tracer()) is not None:
        app.add_middleware(RequestSpans, tracer=recording)
    describe(app, settings)
    return app


def _vector_routes(app: FastAPI, handler: RequestHandler) -> None:
    def add(name: str, operation: Operation, summary: str, description: dict[str, Any]) -> None:
        path = f"/v1/{name}"

        async def endpoint(request: Request) -> Response:
            return await handler.answer(request, path, operation)

        app.post(path, name=name, summary=summary, **description)(endpoint)

    # Each route's requests and answers, and the one column of a request that is an Arrow stream.
    embedded = vectors(EmbeddingsRequest, EmbeddingsAnswer, "id")
    found = vectors(SearchRequest, SearchAnswer, "vector")
    read = vectors(TransformRequest, TransformAnswer, "vector")
    folded = vectors(FoldInRequest, TransformAnswer | SearchAnswer, None)
    routes = vector_routes
    add("embeddings", routes.embeddings, "Embeddings of ids, of texts, or of features", embedded)
    add("search", routes.search, "The nearest stored objects", found)
    add("transform", routes.transform, "Vectors of one version as another reads them", read)
    summary = "Vectors of new queries, from the candidates that they met"
    add("fold-in", routes.fold_in, summary, folded)


def _listing_routes(app: FastAPI, handler: RequestHandler) -> None:
    refused = errors(400, 401, 500, 503, 504)

    def add(name: str, listing: Listing, summary: str, answer: Any) -> None:
        path = f"/v1/{name}"

        async def endpoint(request: Request) -> Response:
            return await handler.list(request, path, listing)

        responses = {200: {"model": answer}, **refused}
        app.get(path, name=name, summary=summary, responses=responses)(endpoint)

    routes = listing_routes
    add("versions", routes.versions, "Versions that may be read", VersionsAnswer)
    add("consumers", routes.consumers, "Who is pinned to which version", ConsumersAnswer)
    add("models", routes.models, "Versions and labels, as OpenAI lists models", ModelsAnswer)

    @app.get(
        "/v1/models/{model}",
        summary="One of them",
        responses={200: {"model": ModelAnswer}, **errors(404), **refused},
    )
    async def model(request: Request, model: str) -> Response:
        one: Listing = lambda state, access: routes.model(state, access, model)  # noqa: E731
        return await handler.list(request, "/v1/models/{model}", one)

    async def dashboard(request: Request) -> DashboardData:
        return await handler.dashboard(request)

    app.include_router(page.router(dashboard), responses=errors(400, 401, 500, 503))


def _health_routes(app: FastAPI, handler: RequestHandler) -> None:
    service = handler.service

    @app.get("/healthz", summary="Whether the process lives")
    async def healthz() -> Liveness:
        return Liveness(status="ok")

    @app.get(
        "/readyz",
        summary="Whether requests are answered",
        responses={200: {"model": Ready}, 503: {"model": Ready}},
    )
    async def readyz() -> Response:
        ready, problem = service.store_problem is None, next(iter(service.problems), None)
        answer = Ready(ready=ready, version=service.production, problem=problem)
        return JSONResponse(answer.model_dump(), 200 if ready else 503)

    @app.get(
        "/metrics",
        summary="For Prometheus",
        response_class=Response,
        responses={**_TEXT, **errors(400, 401, 500, 503, 504)},
    )
    async def metrics(request: Request) -> Response:
        return await handler.metrics_page(request)


def _refusals(app: FastAPI) -> None:
    """Give the refusals of Starlette itself the form of the service's own."""

    async def refused(_: Request, error: Any) -> Response:
        sentence = _NOT_FOUND.get(error.status_code, str(error.detail))
        refusal = error_response(RefusedError(error.status_code, "http", sentence))
        return refusal_response(refusal, **(error.headers or {}))

    async def failed(_: Request, error: Exception) -> Response:
        return refusal_response(error_response(error))

    for handled in (HTTPException, 404, 405):
        app.add_exception_handler(handled, refused)
    for failing in (EvergramError, Exception):
        app.add_exception_handler(failing, failed)
