"""The ASGI application: its routes, their description, its middleware, its handling of errors."""

# No postponed annotations here: FastAPI reads them.
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version as release
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from evergram.errors import EvergramError
from evergram.serving import answers
from evergram.serving.access import HostCheck, refusal_response
from evergram.serving.answers import (
    ConsumersAnswer,
    EmbeddingsAnswer,
    ErrorAnswer,
    Liveness,
    ModelAnswer,
    ModelsAnswer,
    Ready,
    SearchAnswer,
    TransformAnswer,
    VersionsAnswer,
)
from evergram.serving.dashboard import DashboardData
from evergram.serving.errors import ARROW, JSON, RefusedError, error_response
from evergram.serving.request_handler import Listing, Operation, RequestHandler
from evergram.serving.requests import (
    REQUESTS,
    EmbeddingsRequest,
    FoldInRequest,
    SearchRequest,
    TransformRequest,
)
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.serving.vector_routes import embeddings, fold_in, search, transform
from evergram.tracing import tracer_provider

# What machines ask for every few seconds, which has no span.
_SILENT = ("/healthz", "/readyz", "/metrics")
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}
_NOT_FOUND = {
    404: "There is no such page, or not with a slash at its end; /openapi.json describes all.",
    405: "This page does not take that method; /openapi.json says which it takes.",
}


# The page loads nothing from elsewhere, runs nothing inline, and no other page may frame it.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_PAGE_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


class _Application(FastAPI):
    """Drops queries: no page has one, and spans would export what a client wrongly puts there.
    Answers HEAD as GET, whose body the server leaves out."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = {**scope, "query_string": b""}
        if scope.get("method") == "HEAD":
            scope["method"] = "GET"
        await super().__call__(scope, receive, send)


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

    app = _Application(
        title="Evergram",
        summary="Embeddings at the version that each consumer was built on.",
        version=release("evergram"),
        lifespan=lifespan,
        # FastAPI's pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # A redirect would repeat the host of the request, whoever sent it.
        redirect_slashes=False,
        telemetry={
            "tracing": tracer_provider() is not None,
            "tracer_provider": tracer_provider(),
            **{"metrics": False, "logs": False, "operation_spans": False},
            "exclude": lambda scope: scope.get("path") in _SILENT,
        },
        responses=_errors(403, 421),
    )
    app.state.handler = handler
    _vector_routes(app, handler)
    _listing_routes(app, handler)
    _health_routes(app, handler)
    _refusals(app)
    watch: dict[str, Any] = {"tokens": lambda: service.tokens, "refused": handler.count_refusal}
    app.add_middleware(HostCheck, settings=settings, **watch)
    _describe(app)
    return app


def _vector_routes(app: FastAPI, handler: RequestHandler) -> None:
    def add(name: str, operation: Operation, summary: str, description: dict[str, Any]) -> None:
        path = f"/v1/{name}"

        async def endpoint(request: Request) -> Response:
            return await handler.answer(request, path, operation)

        app.post(path, name=name, summary=summary, **description)(endpoint)

    # Each route's requests and answers, and the one column of a request that is an Arrow stream.
    embedded = _vectors(EmbeddingsRequest, EmbeddingsAnswer, "id")
    found = _vectors(SearchRequest, SearchAnswer, "vector")
    read = _vectors(TransformRequest, TransformAnswer, "vector")
    folded = _vectors(FoldInRequest, TransformAnswer | SearchAnswer, None)
    add("embeddings", embeddings, "Embeddings of ids, of texts, or of features", embedded)
    add("search", search, "The nearest stored objects", found)
    add("transform", transform, "Vectors of one version as another reads them", read)
    add("fold-in", fold_in, "Vectors of new queries, from the candidates that they met", folded)


def _listing_routes(app: FastAPI, handler: RequestHandler) -> None:
    refused = _errors(400, 401, 500, 503, 504)

    def add(name: str, listing: Listing, summary: str, answer: Any) -> None:
        path = f"/v1/{name}"

        async def endpoint(request: Request) -> Response:
            return await handler.list(request, path, listing)

        responses = {200: {"model": answer}, **refused}
        app.get(path, name=name, summary=summary, responses=responses)(endpoint)

    add("versions", answers.versions, "Versions that may be read", VersionsAnswer)
    add("consumers", answers.consumers, "Who is pinned to which version", ConsumersAnswer)
    add("models", answers.models, "Versions and labels, as OpenAI lists models", ModelsAnswer)

    @app.get(
        "/v1/models/{model}",
        summary="One of them",
        responses={200: {"model": ModelAnswer}, **_errors(404), **refused},
    )
    async def model(request: Request, model: str) -> Response:
        one: Listing = lambda state, access: answers.model(state, access, model)  # noqa: E731
        return await handler.list(request, "/v1/models/{model}", one)

    @app.get(
        "/v1/dashboard",
        summary="What the dashboard shows",
        responses={200: {"model": DashboardData}, **refused},
    )
    async def data(request: Request) -> Response:
        answer = await handler.list(request, "/v1/dashboard", handler.dashboard)
        answer.headers["Cache-Control"] = "no-store"
        return answer

    app.include_router(dashboard_pages())


def dashboard_pages() -> APIRouter:
    """Return the routes `/` and `/dashboard/…`, for the files of the dashboard's page.

    They hold no data, so everybody may load them.
    """
    static = {
        path.name: (path.read_bytes(), kind)
        for path in files("evergram.serving.dashboard").joinpath("static").iterdir()
        for suffix, kind in _PAGE_TYPES.items()
        if path.name.endswith(suffix)
    }
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    def page() -> Response:
        return part("dashboard.html")

    @routes.get("/dashboard/{name}")
    def part(name: str) -> Response:
        if name not in static:
            raise HTTPException(404, "The dashboard has no such file.")
        body, kind = static[name]
        return Response(body, media_type=kind, headers=_PAGE_HEADERS)

    return routes


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
        responses={**_TEXT, **_errors(400, 401, 500, 503, 504)},
    )
    async def metrics(request: Request) -> Response:
        return await handler.list(request, "/metrics", handler.metrics_page, metrics=True)


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


_REF = "#/components/schemas/{model}"
_STATUS = {
    400: "What was asked cannot be done; the sentence says why.",
    401: "A token is needed, or is not known.",
    403: "The token may not read this version, or a web page of another origin asked.",
    404: "There is no such version, or no such id.",
    408: "The body stopped coming.",
    409: "The vectors carry the fingerprint of another space; or a stored object has no text.",
    413: "More than one request may hold.",
    415: "The body is neither JSON nor an Arrow stream, or does not say which.",
    421: "The service was asked for under a host name that it does not answer to.",
    500: "What the service reads is damaged.",
    503: "Too many requests wait, or a store does not answer; `Retry-After` says when.",
    504: "It took longer than a request may.",
}
_REFUSED = (400, 401, 403, 404, 408, 409, 413, 415, 421, 500, 503, 504)
_STREAM = {"schema": {"type": "string", "format": "binary"}}
_HEADERS = {
    "x-evergram-version": "The version that the answer is read as.",
    "x-evergram-computed-from": "The versions that it was computed from.",
    "x-evergram-fingerprint": "Of the version that the answer is read as.",
}


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return FastAPI's `responses` of a route for the statuses that it refuses with."""
    return {s: {"model": ErrorAnswer, "description": _STATUS[s]} for s in statuses}


def _vectors(request: type[BaseModel], answer: Any, column: str | None) -> dict[str, Any]:
    """Return the arguments of `FastAPI.post` that describe a route of vectors."""
    body = {JSON: {"schema": {"$ref": _REF.format(model=request.__name__)}}}
    description = "JSON."
    if column is not None:
        body[ARROW] = _STREAM
        description = (
            f"JSON; or an uncompressed Arrow stream with one column, {column!r}, and all else as "
            "JSON under `evergram.request` in its schema's metadata."
        )
    success = {
        "model": answer,
        "description": "The rows, and what they were computed from.",
        "content": {ARROW: _STREAM},
        "headers": {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in _HEADERS.items()
        },
    }
    return {
        "responses": {200: success, **_errors(*_REFUSED)},
        "openapi_extra": {
            "requestBody": {"required": True, "content": body, "description": description}
        },
    }


def _describe(app: FastAPI) -> None:
    """Add the bodies of requests for vectors to the app's OpenAPI."""

    def description() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, routes=app.routes, summary=app.summary
            )
            schemas = models_json_schema(
                [(kind, "validation") for kind in REQUESTS], ref_template=_REF
            )[1]["$defs"]
            components = schema.setdefault("components", {})
            components.setdefault("schemas", {}).update(schemas)
            # FastAPI lists it for paths with a name, none of which is invalid.
            del schema["paths"]["/v1/models/{model}"]["get"]["responses"]["422"]
            for unused in ("HTTPValidationError", "ValidationError"):
                del components["schemas"][unused]
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            # A token, or none where the service is open.
            schema["security"] = [{"token": []}, {}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = description  # type: ignore[method-assign]
