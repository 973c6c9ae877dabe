"""Schemas of the service's answers in JSON."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict


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
    """The versions that the token may read, oldest first.

    `default` is true of the version that is read where a request names none. `computed_from` are
    the versions of the stores' rows. `warnings` are sentences for readers of the version, such as
    that it has no certificate. `sides` are those that can be read and searched, the one that is
    taken where a request names none first. `checked` are the published files that were compared
    with their hashes; `unchecked` are compared when they are first read."""

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


class Health(_AnswerModel):
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
