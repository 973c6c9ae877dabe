"""Schemas of the service's answers, and its OpenAPI description."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema

from evergram.serving.http.call import ARROW, JSON
from evergram.serving.http.request_schemas import REQUESTS
from evergram.serving.settings import ServiceSettings


class _AnswerModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class Origin(_AnswerModel):
    """The version of an answer's vectors, and the versions that they were computed from.

    Args:
        version: the version that the answer is read as.
        computed_from: the version whose encoder made each row; -1 of an id that is not stored.
        fingerprint: the fingerprint of `version`.
    """

    version: int
    computed_from: list[int]
    side: str | None
    fingerprint: str


class Embedding(_AnswerModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(_AnswerModel):
    """OpenAI's count of tokens; there are none here, so both are 0."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(_AnswerModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage
    evergram: Origin


class SearchOrigin(Origin):
    """As `Origin`; `scores` is there if they are calibrated."""

    scores: Literal["calibrated"] | None = None


class Hit(_AnswerModel):
    id: int | str
    score: float
    computed_from: int


class SearchResult(_AnswerModel):
    object: Literal["search_result"]
    index: int
    hits: list[Hit]


class SearchAnswer(_AnswerModel):
    """The hits of each query; `evergram.computed_from` names each version of theirs once."""

    object: Literal["list"]
    data: list[SearchResult]
    model: str
    evergram: SearchOrigin


class TransformAnswer(_AnswerModel):
    object: Literal["list"]
    vectors: list[list[float]]
    model: str
    evergram: Origin


class VersionAnswer(_AnswerModel):
    version: int
    name: str
    dim: int
    created: str
    fingerprint: str
    labels: list[str]
    default: bool
    computed_from: list[int]
    warnings: list[str]
    checked: list[str]
    unchecked: list[str]


class VersionsAnswer(_AnswerModel):
    """The versions that the token may read, oldest first, and the sides that can be read and
    searched, the default one first.

    `default` is true of the version that is read where a request names none. `computed_from` are
    the versions of the stores' rows. `warnings` are sentences for readers of the version. `checked`
    are the published files that were compared with their hashes; `unchecked` are compared when they
    are first read."""

    object: Literal["list"]
    name: str
    sides: list[str]
    data: list[VersionAnswer]


class ConsumerAnswer(_AnswerModel):
    """One consumer; `version` is None where the label that it is pinned to is gone."""

    name: str
    pinned: str
    version: int | None
    allowed: list[str]
    since: str


class ConsumersAnswer(_AnswerModel):
    object: Literal["list"]
    data: list[ConsumerAnswer]


class ModelAnswer(_AnswerModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsAnswer(_AnswerModel):
    object: Literal["list"]
    data: list[ModelAnswer]


class Liveness(_AnswerModel):
    status: Literal["ok"]


class Ready(_AnswerModel):
    """Readiness; `problem` names the change that cannot be loaded, or the store that is silent."""

    ready: bool
    version: int
    problem: str | None


class Problem(_AnswerModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(_AnswerModel):
    error: Problem


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


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return FastAPI's `responses` of a route for the statuses that it refuses with."""
    return {s: {"model": ErrorAnswer, "description": _STATUS[s]} for s in statuses}


def vectors(request: type[BaseModel], answer: Any, column: str | None) -> dict[str, Any]:
    """Return the arguments of `FastAPI.post` that describe a route of vectors.

    Args:
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
    """Remove the answer 422: FastAPI lists it for paths with a name, none of which is invalid."""
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)


def _limit(schemas: dict[str, Any], settings: ServiceSettings) -> None:
    """Write the service's limits into the schemas of requests."""
    search, folded = schemas["SearchRequest"]["properties"], schemas["FoldInRequest"]["properties"]
    search["k"]["maximum"] = settings.max_k
    for number in (search["rerank"], folded["k"]):
        number["anyOf"][0]["maximum"] = settings.max_k
    lists = [
        schemas["EmbeddingsRequest"]["properties"]["input"],
        schemas["TransformRequest"]["properties"]["vectors"],
        *(search[name] for name in ("ids", "input", "vectors")),
        folded["candidates"],
    ]
    bounds = [(schema, settings.max_batch) for schema in lists]
    for schema, items in [*bounds, (search["vector"], settings.max_dim)]:
        for kind in schema.get("anyOf", [schema]):
            if kind.get("type") == "array":
                kind["maxItems"] = items
