"""What a route is asked and answers: one call, its answer as JSON or as an Arrow stream; schemas
of all answers; and the lists of versions, models and consumers."""

from __future__ import annotations

import binascii
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from evergram.errors import DataError, LineageError, UnknownVersionError
from evergram.lineage.diagnosis import version_warnings
from evergram.lineage.lineage import Lineage
from evergram.lineage.record import Manifest
from evergram.serving.access import Access
from evergram.serving.errors import ARROW, JSON, RefusedError
from evergram.serving.metrics import Drift
from evergram.serving.service import ServedState
from evergram.serving.settings import ServiceSettings
from evergram.stores.store import Floats, Hits

Sources = npt.NDArray[np.int64]
R = TypeVar("R")


@dataclass(frozen=True)
class Call:
    """One request, and everything that its answer is made from.

    Args:
        arrow_in, arrow_out: whether the body is an Arrow stream, and whether the answer is to be.
        fingerprint: fingerprint that the request's header claims for its vectors.
        may_wait: whether its thread may wait for an encoder of text.
    """

    state: ServedState
    access: Access
    settings: ServiceSettings
    drift: Drift
    body: bytes
    arrow_in: bool
    arrow_out: bool
    fingerprint: str | None
    may_wait: bool = False

    @property
    def lineage(self) -> Lineage:
        return self.state.lineage


@dataclass(frozen=True)
class Answer:
    """An answer as it is sent: `sources` is version to the number of rows that were computed from
    it, `reranked` the objects that a search re-ranked, by where their vector came from."""

    body: bytes
    media: str
    version: int
    fingerprint: str
    sources: Mapping[int, int]
    reranked: Mapping[str, int] = field(default_factory=dict)


def looked_up(lookup: Callable[[], R]) -> R:
    """Look up rows in the stores; refuse rows of a version that the service has not loaded yet."""
    try:
        return lookup()
    except UnknownVersionError as error:
        busy = "The service is loading a new version; try again."
        raise RefusedError(503, "taking_up", busy) from error


def vectors_answer(
    call: Call,
    version: int,
    side: str | None,
    vectors: Floats,
    sources: Sources,
    *,
    ids: pa.Array | None = None,
    encoding: str | None = None,
) -> Answer:
    """Return the answer of vectors [n, D], computed from the versions `sources` [n]. The `encoding`
    is "float" or "base64" (little-endian float32) of OpenAI's form, or None of plain vectors."""
    if not np.isfinite(vectors).all():
        raise DataError(
            "A vector is not finite at the version that it is read as; give shorter vectors."
        )
    vectors = np.ascontiguousarray(vectors, dtype="<f4")
    answer: dict[str, Any]
    if call.arrow_out:
        answer = {} if ids is None else {"id": ids}
        flat = pa.array(vectors.ravel())
        answer["vector"] = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    elif encoding is None:
        answer = {"vectors": vectors}
    else:
        rows: Any = vectors
        if encoding == "base64":
            rows = [binascii.b2a_base64(row.data, newline=False).decode() for row in vectors]
        data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
        answer = {"data": data, "usage": {"prompt_tokens": 0, "total_tokens": 0}}
    answer["computed_from"] = pa.array(sources) if call.arrow_out else sources
    return _answer(call, version, {"side": side}, answer, Counter(sources.tolist()))


def hits_answer(
    call: Call,
    version: int,
    side: str,
    results: Sequence[Hits],
    *,
    calibrated: bool = False,
    reranked: Mapping[str, int] | None = None,
) -> Answer:
    """Return the answer of the hits of each query."""
    if not all(np.isfinite(hits.scores).all() for hits in results):
        raise DataError("A score is not finite; give shorter vectors.")
    counts = Counter(source for hits in results for source in hits.versions.tolist())
    origin: dict[str, object] = {"side": side}
    if calibrated:
        origin["scores"] = "calibrated"
    answer: dict[str, Any]
    if call.arrow_out:
        # One row a hit, with the number of its query.
        lengths = [len(hits) for hits in results]
        id_type = call.state.reader.store(side).id_type
        scores = np.concatenate([hits.scores for hits in results]).astype(np.float32, copy=False)
        answer = {
            "query": pa.array(np.repeat(np.arange(len(results), dtype=np.int32), lengths)),
            "id": pa.concat_arrays([hits.ids.cast(id_type) for hits in results]),
            "score": pa.array(scores),
            "computed_from": pa.array(np.concatenate([hits.versions for hits in results])),
        }
        origin["queries"] = len(results)
    else:
        names, data = ("id", "score", "computed_from"), list[Any]()
        for i, hits in enumerate(results):
            columns = hits.ids.to_pylist(), hits.scores.tolist(), hits.versions.tolist()
            rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            data.append({"object": "search_result", "index": i, "hits": rows})
        answer = {"data": data, "computed_from": sorted(counts)}
    return replace(_answer(call, version, origin, answer, counts), reranked=reranked or {})


def _answer(
    call: Call,
    version: int,
    origin: Mapping[str, object],
    answer: dict[str, Any],
    counts: Mapping[int, int],
) -> Answer:
    """Return an answer of these columns or, in JSON, of these fields."""
    fingerprint = call.lineage.manifest(version).fingerprint
    named = {"version": version, **origin, "fingerprint": fingerprint}
    model = f"{call.lineage.name}@v{version}"
    if call.arrow_out:
        every = {"model": model, **named}
        metadata = {f"evergram.{k}": str(v) for k, v in every.items() if v is not None}
        batch = pa.record_batch(list(answer.values()), names=list(answer))
        batch = batch.replace_schema_metadata(metadata)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return Answer(sink.getvalue().to_pybytes(), ARROW, version, fingerprint, counts)
    named["computed_from"] = answer.pop("computed_from")
    fields = {"object": "list", **answer, "model": model, "evergram": named}
    # A float32 has the fewest digits that give the same float32 again.
    body = orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
    return Answer(body, JSON, version, fingerprint, counts)


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


def versions(state: ServedState, access: Access) -> VersionsAnswer:
    """Return the versions that may be read, oldest first."""
    lineage = state.lineage
    readable = access.readable(lineage)
    stored = sorted({v for side in state.reader.sides for v in state.reader.store(side).filled()})
    default = _default(lineage, access)
    warnings = version_warnings(lineage)
    # Files are those of the reader's lineage, which is a version ahead while stores are filled.
    ahead = state.reader.lineage
    files = {m.version: ahead.files(m.version) for m in ahead.versions}
    answers = [
        VersionAnswer(
            version=manifest.version,
            name=f"{lineage.name}@v{manifest.version}",
            dim=manifest.dim,
            created=manifest.created,
            fingerprint=manifest.fingerprint,
            labels=sorted(k for k, v in lineage.labels.items() if v == manifest.version),
            default=manifest.version == default,
            computed_from=stored,
            warnings=warnings[manifest.version],
            checked=[name for name, done in files.get(manifest.version, {}).items() if done],
            unchecked=[name for name, done in files.get(manifest.version, {}).items() if not done],
        )
        for manifest in lineage.versions
        if manifest.version in readable
    ]
    first = state.reader.default_side
    sides = sorted(state.reader.sides, key=lambda side: (side != first, side))
    return VersionsAnswer(object="list", name=lineage.name, sides=sides, data=answers)


def models(state: ServedState, access: Access) -> ModelsAnswer:
    """Return the versions as OpenAI lists models: by number, by label, and by the bare name."""
    lineage = state.lineage
    readable = access.readable(lineage)
    models = [
        _model(f"{lineage.name}@v{m.version}", m) for m in lineage.versions if m.version in readable
    ]
    models += [
        _model(f"{lineage.name}@{label}", lineage.manifest(version))
        for label, version in sorted(lineage.labels.items())
        if version in readable
    ]
    default = _default(lineage, access)
    if default is not None:
        models.append(_model(lineage.name, lineage.manifest(default)))
    return ModelsAnswer(object="list", data=models)


def model(state: ServedState, access: Access, name: str) -> ModelAnswer:
    """Return one model."""
    for listed in models(state, access).data:
        if listed.id == name:
            return listed
    raise RefusedError(
        404, "unknown_version", f"There is no model {name[:80]!r}; /v1/models lists them.", "model"
    )


def consumers(state: ServedState, access: Access) -> ConsumersAnswer:
    """Return the consumers without their tokens, to the administrator."""
    access.require_admin("The list of consumers")
    answers = []
    for consumer in state.consumers.list():
        version = None
        with suppress(LineageError):
            version = state.lineage.resolve(consumer.pinned)
        facts = {name: getattr(consumer, name) for name in ("name", "pinned", "since")}
        answers.append(ConsumerAnswer(version=version, allowed=list(consumer.allowed), **facts))
    return ConsumersAnswer(object="list", data=answers)


def _default(lineage: Lineage, access: Access) -> int | None:
    try:
        return access.version(lineage, None)
    except (LineageError, RefusedError):
        return None


def _model(name: str, manifest: Manifest) -> ModelAnswer:
    created = int(datetime.fromisoformat(manifest.created).timestamp())
    return ModelAnswer(id=name, object="model", created=created, owned_by="evergram")
