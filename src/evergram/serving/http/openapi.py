"""The service's OpenAPI description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from evergram.serving.http.answers.arrow_answers import MEDIA as ARROW
from evergram.serving.http.answers.schemas import ErrorAnswer
from evergram.serving.http.call import JSON
from evergram.serving.http.requests.schemas import REQUESTS
from evergram.serving.settings import ServiceSettings

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
    421: "The service was asked for under a host that is none of its names.",
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


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return FastAPI's `responses` of a route for the statuses that it refuses with."""
    return {s: {"model": ErrorAnswer, "description": _STATUS[s]} for s in statuses}


def vectors(request: type[BaseModel], answer: Any, column: str | None) -> dict[str, Any]:
    """Return the arguments of `FastAPI.post` that describe a route of vectors, in JSON or Arrow.

    Args:
        request, answer: their schemas; an answer may be one of several.
        column: the one column of an Arrow request; None where requests are JSON only.
    """
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
        "responses": {200: success, **errors(*_REFUSED)},
        "openapi_extra": {
            "requestBody": {"required": True, "content": body, "description": description}
        },
    }


def describe(app: FastAPI, settings: ServiceSettings) -> None:
    """Add the bodies of requests for vectors, and the service's limits, to the app's OpenAPI."""

    def description() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, routes=app.routes, summary=app.summary
            )
            schemas = models_json_schema(
                [(kind, "validation") for kind in REQUESTS], ref_template=_REF
            )[1]["$defs"]
            _limit(schemas, settings)
            components = schema.setdefault("components", {})
            components.setdefault("schemas", {}).update(schemas)
            _without_422(schema)
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            # A token, or none where the service is open.
            schema["security"] = [{"token": []}, {}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = description  # type: ignore[method-assign]


def _without_422(schema: dict[str, Any]) -> None:
    """Remove the answer 422, which no route gives.

    FastAPI lists it for every path with a name in it, but no name is invalid here.
    """
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)


def _limit(schemas: dict[str, Any], settings: ServiceSettings) -> None:
    def bound(lists: Sequence[dict[str, Any]], items: int) -> None:
        for schema in lists:
            if schema.get("type") == "array":
                schema["maxItems"] = items

    search = schemas["SearchRequest"]["properties"]
    search["k"]["maximum"] = settings.max_k
    search["rerank"]["anyOf"][0]["maximum"] = settings.max_k
    bound(schemas["EmbeddingsRequest"]["properties"]["input"]["anyOf"], settings.max_batch)
    bound(search["ids"]["anyOf"], settings.max_batch)
    bound(search["input"]["anyOf"], settings.max_batch)
    bound(search["vector"]["anyOf"], settings.max_dim)
    bound(search["vectors"]["anyOf"], settings.max_batch)
    folded = schemas["FoldInRequest"]["properties"]
    bound(folded["candidates"]["anyOf"], settings.max_batch)
    folded["k"]["anyOf"][0]["maximum"] = settings.max_k
    bound([schemas["TransformRequest"]["properties"]["vectors"]], settings.max_batch)
