"""A call and its answer, the schemas of all answers, and the listings of versions and models."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from evergram.errors import LineageError
from evergram.lineage.diagnosis import version_warnings
from evergram.lineage.lineage import Lineage
from evergram.serving.access import Access
from evergram.serving.errors import RefusedError
from evergram.serving.service import ServedState
from evergram.serving.settings import ServiceSettings


@dataclass(frozen=True)
class Call:
    """One request, with everything needed to answer it."""

    state: ServedState
    access: Access
    settings: ServiceSettings
    body: bytes
    # Whether the body is, and the answer must be, an Arrow stream.
    arrow_in: bool
    arrow_out: bool
    fingerprint: str | None  # what the request's header claims for its vectors
    may_wait: bool = False  # whether this thread may wait for a text encoder

    @property
    def lineage(self) -> Lineage:
        return self.state.lineage


@dataclass(frozen=True)
class Answer:
    """An answer; `sources` maps a version to the number of rows that were computed from it."""

    body: bytes
    media: str
    version: int
    fingerprint: str
    sources: Mapping[int, int]


class _AnswerModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class Origin(_AnswerModel):
    """The version of an answer's vectors, and the versions that they were computed from.

    Args:
        version: the version that the vectors are in.
        computed_from: the version whose encoder made each row; -1 for an id that is not stored.
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
    """OpenAI's token counts; always 0."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(_AnswerModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage
    evergram: Origin


class SearchOrigin(Origin):
    """Like `Origin`; `scores` is present if they are calibrated."""

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
    """The hits of each query; `evergram.computed_from` lists their distinct source versions."""

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


class VersionsAnswer(_AnswerModel):
    """The versions that the token may read, oldest first, and the sides that can be read and
    searched, the default side first.

    `default` is true for the version that a request gets if it names none. `computed_from` lists
    the versions of the stores' rows. `warnings` are sentences for readers of the version."""

    object: Literal["list"]
    name: str
    sides: list[str]
    data: list[VersionAnswer]


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
    """Readiness; `problem` describes a change that cannot be loaded or a store that is down."""

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


def versions(state: ServedState, access: Access) -> VersionsAnswer:
    """Return the versions that may be read, oldest first."""
    lineage, readable = state.lineage, access.readable(state.lineage)
    stored = sorted({v for side in state.reader.sides for v in state.reader.store(side).filled()})
    default = _default(lineage, access)
    warnings = version_warnings(lineage)
    manifest_fields = {"version", "name", "dim", "created", "fingerprint"}
    answers = [
        VersionAnswer(
            labels=sorted(k for k, v in lineage.labels.items() if v == manifest.version),
            default=manifest.version == default,
            computed_from=stored,
            warnings=warnings[manifest.version],
            **manifest.model_dump(include=manifest_fields),
        )
        for manifest in lineage.versions
        if manifest.version in readable
    ]
    first = state.reader.default_side
    sides = sorted(state.reader.sides, key=lambda side: (side != first, side))
    return VersionsAnswer(object="list", name=lineage.name, sides=sides, data=answers)


def models(state: ServedState, access: Access) -> ModelsAnswer:
    """Return the versions in the format of OpenAI's model list: by number, label and bare name."""
    lineage, readable = state.lineage, access.readable(state.lineage)
    names = [(f"{lineage.name}@v{m.version}", m.version) for m in lineage.versions]
    names += [(f"{lineage.name}@{label}", n) for label, n in sorted(lineage.labels.items())]
    names = [(name, version) for name, version in names if version in readable]
    default = _default(lineage, access)
    if default is not None:
        names.append((lineage.name, default))
    models = []
    for name, version in names:
        created = int(datetime.fromisoformat(lineage.manifest(version).created).timestamp())
        models.append(ModelAnswer(id=name, object="model", created=created, owned_by="evergram"))
    return ModelsAnswer(object="list", data=models)


def _default(lineage: Lineage, access: Access) -> int | None:
    with suppress(LineageError, RefusedError):
        return access.version(lineage, None)
    return None
