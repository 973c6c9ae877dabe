"""The ASGI application: its routes, their description, its middleware, its handling of errors."""

# No postponed annotations here: FastAPI reads them.
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

# What machines ask for every few seconds, which has no span.
_SILENT = ("/healthz", "/readyz", "/metrics")
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
    Answers HEAD as GET, whose body the server leaves out. Describes the bodies of requests."""

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
            # A token, or none where the service is open.
            schema["security"] = [{"token": []}, {}]
            self.openapi_schema = schema
        return self.openapi_schema


def create_app(service: Service, settings: ServiceSettings | None = None) -> FastAPI:
    """Return a service as an ASGI application, which closes the service when it is shut down.
    Raises: ServiceError: as `ServiceSettings.check`."""
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
    app.include_router(dashboard_pages())

    async def failed(_: Request, error: Exception) -> Response:
        """Give each error, a refusal of Starlette's own too, the form of the service's."""
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
        """Add a route; `column` is the one of a request that is an Arrow stream."""
        name = operation.__name__.replace("_", "-")
        path = f"/v1/{name}"
        body = {JSON: {"schema": {"$ref": _REF.format(model=request.__name__)}}}
        described = "JSON."
        if column:
            body[ARROW] = _STREAM
            described = f"JSON, or an uncompressed Arrow stream with the column {column!r}."
        success = {
            "model": answer,
            "description": "The rows, and what they were computed from.",
            "content": {ARROW: _STREAM},
            "headers": {
                header: {"description": text, "schema": {"type": "string"}}
                for header, text in _HEADERS.items()
            },
        }

        async def endpoint(request: Request) -> Response:
            return await handler.answer(request, path, operation)

        sent = {"requestBody": {"required": True, "content": body, "description": described}}
        responses = {200: success, **_errors(*_REFUSED)}
        route = app.post(path, name=name, summary=summary, responses=responses, openapi_extra=sent)
        route(endpoint)

    found, read = answers.SearchAnswer, answers.TransformAnswer
    of_ids = "Embeddings of ids, or of texts"
    add(embeddings, of_ids, requests.EmbeddingsRequest, answers.EmbeddingsAnswer, "id")
    add(search, "The nearest stored objects", requests.SearchRequest, found, "vector")
    add(transform, "Vectors of another version", requests.TransformRequest, read, "vector")
    add(fold_in, "Vectors of new queries", requests.FoldInRequest, read)


def _listing_routes(app: FastAPI, handler: RequestHandler) -> None:
    service, refused = handler.service, _errors(400, 401, 500, 503, 504)

    def add(name: str, listing: Listing, summary: str, answer: Any) -> None:
        path = f"/v1/{name}"

        async def endpoint(request: Request) -> Response:
            return await handler.list(request, path, listing)

        responses = {200: {"model": answer}, **refused}
        app.get(path, name=name, summary=summary, responses=responses)(endpoint)

    add("versions", answers.versions, "Versions that may be read", answers.VersionsAnswer)
    listed = "Versions and labels, as OpenAI lists models"
    add("models", answers.models, listed, answers.ModelsAnswer)
    add("dashboard", handler.dashboard, "What the dashboard shows", DashboardData)

    @app.get("/healthz", summary="Whether the process lives")
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
    """Return the routes `/` and `/dashboard/…`, for the files of the dashboard's page. They hold no
    data, so everybody may load them."""
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
    return {s: {"model": answers.ErrorAnswer, "description": _STATUS[s]} for s in statuses}
