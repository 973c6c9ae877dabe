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
from evergram.serving.http.answers.errors import ErrorResponse, RefusedError, error_response
from evergram.serving.http.answers.schemas import (
    ConsumersAnswer,
    EmbeddingsAnswer,
    Health,
    ModelAnswer,
    ModelsAnswer,
    Ready,
    SearchAnswer,
    TransformAnswer,
    VersionsAnswer,
)
from evergram.serving.http.call import JSON
from evergram.serving.http.fast_paths.direct_routes import DirectRoutes, Endpoint
from evergram.serving.http.fold_in_route import fold_in
from evergram.serving.http.host_check import HostCheck
from evergram.serving.http.openapi import describe, errors, vectors
from evergram.serving.http.request_handler import Operation, RequestHandler
from evergram.serving.http.requests.schemas import (
    EmbeddingsRequest,
    FoldInRequest,
    SearchRequest,
    TransformRequest,
)
from evergram.serving.monitoring.request_spans import RequestSpans
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.tracing import tracer


class HeadAsGet:
    """Middleware that answers HEAD as GET, whose body the server then leaves out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}


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
    _dashboard(app, handler)
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
    endpoints: dict[str, Endpoint] = {}

    def add(name: str, operation: Operation, summary: str, description: dict[str, Any]) -> None:
        path = f"/v1/{name}"

        async def endpoint(request: Request) -> Response:
            return await handler.answer(request, path, operation)

        app.post(path, name=name, summary=summary, **description)(endpoint)
        endpoints[path] = endpoint

    add(
        "embeddings",
        vector_routes.embeddings,
        "Embeddings of ids, of texts, or of features",
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
    add(
        "fold-in",
        fold_in,
        "Vectors of new queries, from the candidates that they met",
        vectors(FoldInRequest, TransformAnswer | SearchAnswer, None),
    )
    app.add_middleware(DirectRoutes, endpoints=endpoints)


def _listing_routes(app: FastAPI, handler: RequestHandler) -> None:
    refused = errors(400, 401, 500, 503, 504)

    @app.get(
        "/v1/versions",
        summary="Versions that may be read",
        responses={200: {"model": VersionsAnswer}, **refused},
    )
    async def versions(request: Request) -> Response:
        return await handler.list(request, "/v1/versions", listing_routes.versions)

    @app.get(
        "/v1/consumers",
        summary="Who is pinned to which version",
        responses={200: {"model": ConsumersAnswer}, **refused},
    )
    async def consumers(request: Request) -> Response:
        return await handler.list(request, "/v1/consumers", listing_routes.consumers)

    @app.get(
        "/v1/models",
        summary="Versions and labels, as OpenAI lists models",
        responses={200: {"model": ModelsAnswer}, **refused},
    )
    async def models(request: Request) -> Response:
        return await handler.list(request, "/v1/models", listing_routes.models)

    @app.get(
        "/v1/models/{model}",
        summary="One of them",
        responses={200: {"model": ModelAnswer}, **errors(404), **refused},
    )
    async def model(request: Request, model: str) -> Response:
        return await handler.list(
            request, "/v1/models/{model}", lambda s, a: listing_routes.model(s, a, model)
        )


def _health_routes(app: FastAPI, handler: RequestHandler) -> None:
    service = handler.service

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
        answer = Ready(
            ready=ready,
            version=service.production,
            problem=next(iter(service.problems), None),
        )
        return JSONResponse(answer.model_dump(), 200 if ready else 503)

    @app.get(
        "/metrics",
        summary="For Prometheus",
        response_class=Response,
        responses={**_TEXT, **errors(400, 401, 500, 503, 504)},
    )
    async def metrics(request: Request) -> Response:
        return await handler.metrics_page(request)


def _dashboard(app: FastAPI, handler: RequestHandler) -> None:
    async def data(request: Request) -> DashboardData:
        return await handler.dashboard(request)

    app.include_router(page.router(data), responses=errors(400, 401, 500, 503))


def _refusals(app: FastAPI) -> None:
    """Give the refusals of Starlette itself the form of the service's own."""

    async def refused(_: Request, error: Any) -> Response:
        sentences = {
            404: "There is no such page, or not with a slash at its end; /openapi.json describes "
            "those that there are.",
            405: "This page does not take that method; /openapi.json says which it takes.",
        }
        sentence = sentences.get(error.status_code, str(error.detail))
        refusal = error_response(RefusedError(error.status_code, "http", sentence))
        return _response(refusal, {**refusal.headers, **(error.headers or {})})

    async def failed(_: Request, error: Exception) -> Response:
        refusal = error_response(error)
        return _response(refusal, refusal.headers)

    app.add_exception_handler(HTTPException, refused)
    for status in (404, 405):
        app.add_exception_handler(status, refused)
    app.add_exception_handler(EvergramError, failed)
    app.add_exception_handler(Exception, failed)


def _response(refusal: ErrorResponse, headers: dict[str, str]) -> Response:
    return Response(refusal.body, refusal.status, headers, JSON)
