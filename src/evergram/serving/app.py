"""The ASGI application: routes, their OpenAPI descriptions, middleware and error handling."""

# FastAPI reads annotations at run time, so they are not postponed here.
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version as release
from importlib.resources import files
from typing import Any

import starlette.exceptions
from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from evergram.errors import EvergramError
from evergram.serving import answers, requests
from evergram.serving.access import HostCheck, refusal_response
from evergram.serving.dashboard import DashboardData
from evergram.serving.errors import ARROW, JSON, RefusedError, error_response
from evergram.serving.request_handler import Listing, Operation, RequestHandler
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.serving.vector_routes import embeddings, fold_in, search, transform
from evergram.tracing import tracer_provider

# Pages that machines poll every few seconds; they get no trace spans.
_UNTRACED = ("/healthz", "/readyz", "/metrics")
_NOT_FOUND = {
    404: "There is no such page; /openapi.json lists all (without a slash at the end).",
    405: "This page does not accept that method; /openapi.json says which ones it does.",
}
# The page loads nothing from other hosts, has no inline scripts, and cannot be framed.
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
    """FastAPI with three changes. Query strings are dropped: no route takes one, and trace spans
    would export whatever a client put there. HEAD is handled like GET; the server omits the body.
    The OpenAPI schema describes the request bodies."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = {**scope, "query_string": b""}
        if scope.get("method") == "HEAD":
            scope["method"] = "GET"
        await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            schema = get_openapi(
                title=self.title, version=self.version, routes=self.routes, summary=self.summary
            )
            kinds: Any = [(kind, "validation") for kind in requests.REQUESTS]
            components = schema["components"]
            components["schemas"] |= models_json_schema(kinds, ref_template=_REF)[1]["$defs"]
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            # A token, or none if the service is open.
            schema["security"] = [{"token": []}, {}]
            self.openapi_schema = schema
        return self.openapi_schema


def create_app(service: Service, settings: ServiceSettings | None = None) -> FastAPI:
    """Return an ASGI application for a service, which it closes on shutdown.
    Raises: ServiceError: see `ServiceSettings.check`."""
    settings = ServiceSettings() if settings is None else settings
    settings.check(service.tokens)
    handler = RequestHandler(service, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(handler.watch())
        yield
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await asyncio.to_thread(handler.close)

    app = _Application(
        title="Evergram",
        summary="Embeddings at the version that each consumer was built on.",
        version=release("evergram"),
        lifespan=lifespan,
        # FastAPI's documentation pages load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        # A redirect would repeat the request's Host header, which anyone can forge.
        redirect_slashes=False,
        telemetry={
            "tracing": tracer_provider() is not None,
            "tracer_provider": tracer_provider(),
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "exclude": lambda scope: scope.get("path") in _UNTRACED,
        },
        responses=_errors(403, 421),
    )
    app.state.handler = handler
    _vector_routes(app, handler)
    _listing_routes(app, handler)
    app.include_router(dashboard_pages())

    async def failed(_: Request, error: Exception) -> Response:
        """Return any error, including Starlette's own, in the service's error format."""
        headers = {}
        if isinstance(error, starlette.exceptions.HTTPException):
            headers = dict(error.headers or {})
            sentence = _NOT_FOUND.get(error.status_code, str(error.detail))
            error = RefusedError(error.status_code, "http", sentence)
        return refusal_response(error_response(error), **headers)

    for kind in (starlette.exceptions.HTTPException, EvergramError, Exception):
        app.add_exception_handler(kind, failed)
    app.add_middleware(HostCheck, service=service, settings=settings, errors=handler.metrics.errors)
    return app


def _vector_routes(app: FastAPI, handler: RequestHandler) -> None:
    def add(
        operation: Operation, summary: str, request: Any, answer: Any, column: str = ""
    ) -> None:
        """Add a route; `column` is the Arrow column of its requests, "" if it takes only JSON."""
        name = operation.__name__.replace("_", "-")
        path = f"/v1/{name}"
        body = {JSON: {"schema": {"$ref": _REF.format(model=request.__name__)}}}
        described = "JSON."
        if column:
            body[ARROW] = _STREAM
            described = f"JSON, or an uncompressed Arrow stream with the column {column!r}."
        success = {
            "model": answer,
            "description": "The rows, and the versions they were computed from.",
            "content": {ARROW: _STREAM},
            "headers": {
                header: {"description": text, "schema": {"type": "string"}}
                for header, text in _HEADERS.items()
            },
        }

        async def endpoint(request: Request) -> Response:
            return await handler.answer(request, path, operation)

        extra = {"requestBody": {"required": True, "content": body, "description": described}}
        responses = {200: success, **_errors(*_REFUSED)}
        route = app.post(path, name=name, summary=summary, responses=responses, openapi_extra=extra)
        route(endpoint)

    hits, vectors = answers.SearchAnswer, answers.TransformAnswer
    of_ids = "Embeddings of ids, or of texts"
    add(embeddings, of_ids, requests.EmbeddingsRequest, answers.EmbeddingsAnswer, "id")
    add(search, "The nearest stored objects", requests.SearchRequest, hits, "vector")
    add(transform, "Vectors of another version", requests.TransformRequest, vectors, "vector")
    add(fold_in, "Vectors of new queries", requests.FoldInRequest, vectors)


def _listing_routes(app: FastAPI, handler: RequestHandler) -> None:
    service, refused = handler.service, _errors(400, 401, 500, 503, 504)

    def add(name: str, listing: Listing, summary: str, answer: Any) -> None:
        path = f"/v1/{name}"

        async def endpoint(request: Request) -> Response:
            return await handler.list(request, path, listing)

        responses = {200: {"model": answer}, **refused}
        app.get(path, name=name, summary=summary, responses=responses)(endpoint)

    add("versions", answers.versions, "Versions that may be read", answers.VersionsAnswer)
    listed = "Versions and labels, in the format of OpenAI's model list"
    add("models", answers.models, listed, answers.ModelsAnswer)
    add("dashboard", handler.dashboard, "The dashboard's data", DashboardData)

    @app.get("/healthz", summary="Whether the process is running")
    async def healthz() -> answers.Liveness:
        return answers.Liveness(status="ok")

    @app.get(
        "/readyz",
        summary="Whether requests are answered",
        responses={200: {"model": answers.Ready}, 503: {"model": answers.Ready}},
    )
    async def readyz() -> Response:
        ready, problem = service.store_problem is None, next(iter(service.problems), None)
        answer = answers.Ready(ready=ready, version=service.production, problem=problem)
        return JSONResponse(answer.model_dump(), 200 if ready else 503)

    text: Any = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
    responses = {**text, **refused}

    @app.get("/metrics", summary="For Prometheus", response_class=Response, responses=responses)
    async def metrics(request: Request) -> Response:
        return await handler.list(request, "/metrics", handler.metrics_page, metrics=True)


def dashboard_pages() -> APIRouter:
    """Return the routes `/` and `/dashboard/…` for the dashboard's static files. They contain no
    data, so they need no token."""
    static = {
        path.name: (path.read_bytes(), kind)
        for path in files("evergram.serving.dashboard").joinpath("static").iterdir()
        for suffix, kind in _PAGE_TYPES.items()
        if path.name.endswith(suffix)
    }
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    def page() -> Response:
        return static_file("dashboard.html")

    @routes.get("/dashboard/{name}")
    def static_file(name: str) -> Response:
        if name not in static:
            raise HTTPException(404, "The dashboard has no such file.")
        body, kind = static[name]
        return Response(body, media_type=kind, headers=_PAGE_HEADERS)

    return routes


_REF = "#/components/schemas/{model}"
_STATUS = {
    400: "The request is invalid; the message says why.",
    401: "The token is missing or unknown.",
    403: "The token may not read this version, or a web page of another origin sent the request.",
    404: "The version or an id does not exist.",
    408: "The client stopped sending the body.",
    409: "The vectors have another version's fingerprint, or a stored object has no text.",
    413: "The request exceeds a limit.",
    415: "The body is neither JSON nor an Arrow stream, or its `Content-Type` is missing.",
    421: "The request names a host that the service does not answer for.",
    500: "The service's data is damaged.",
    503: "Too many requests are waiting, or a store is down; `Retry-After` says when to retry.",
    504: "The request took too long.",
}
_REFUSED = (400, 401, 403, 404, 408, 409, 413, 415, 421, 500, 503, 504)
_STREAM = {"schema": {"type": "string", "format": "binary"}}
_HEADERS = {
    "x-evergram-version": "The version that the answer's vectors are in.",
    "x-evergram-computed-from": "The versions that it was computed from.",
    "x-evergram-fingerprint": "The fingerprint of that version.",
}


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return FastAPI's `responses` for the error statuses of a route."""
    return {s: {"model": answers.ErrorAnswer, "description": _STATUS[s]} for s in statuses}
