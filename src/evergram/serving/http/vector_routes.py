"""What the three routes of vectors do, in a worker's thread: from bytes to bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.errors import UnknownVersionError
from evergram.lineage.lineage import Lineage
from evergram.serving.http import json_answers
from evergram.serving.http.auth import Access
from evergram.serving.http.errors import RefusedError
from evergram.serving.http.requests import arrow_stream
from evergram.serving.http.requests.ids import (
    as_ids,
    check_count,
    ids_of,
    missing_ids,
    model_version,
    objects_of,
    vector_of,
    vectors_of,
)
from evergram.serving.http.requests.json_pieces import Body
from evergram.serving.http.requests.parsing import Parsed, parse
from evergram.serving.http.schemas import (
    EmbeddingsOptions,
    EmbeddingsRequest,
    Features,
    SearchOptions,
    SearchRequest,
    TransformOptions,
    TransformRequest,
)
from evergram.serving.monitoring.drift import Drift
from evergram.serving.service import State
from evergram.serving.settings import Settings
from evergram.stores.store import Floats

JSON = "application/json"
# Bytes of a request of few ids.
QUICK = 4096
R = TypeVar("R")


@dataclass(frozen=True)
class Call:
    """One request, with all that answers it.

    Args:
        size: bytes of the body.
        content: puts the body together.
        arrow_in, arrow_out: whether the body is an Arrow stream, and whether the answer is to be.
        fingerprint: that the request's vectors are said to have, of the header.
    """

    state: State
    access: Access
    settings: Settings
    drift: Drift
    size: int
    content: Callable[[], Body]
    arrow_in: bool
    arrow_out: bool
    fingerprint: str | None

    @property
    def body(self) -> Body:
        return self.content()

    @property
    def lineage(self) -> Lineage:
        return self.state.lineage


@dataclass(frozen=True)
class Answer:
    """Bytes to send.

    Args:
        version: that it is read as.
        sources: version to how many rows were computed from it.
    """

    body: bytes
    media: str
    version: int
    fingerprint: str
    sources: Mapping[int, int]


def is_quick(call: Call) -> bool:
    """Whether embeddings take less time than a worker's thread takes to begin: a few ids, on
    stores that are in this machine's memory."""
    if call.size > QUICK or not call.state.opened.at_hand:
        return False
    # JSON may write letters as \u0066, too.
    body = call.body
    return b"features" not in body and b"\\u00" not in body


def embeddings(call: Call) -> Answer:
    """`POST /v1/embeddings`. Raises: EvergramError."""
    options: EmbeddingsOptions
    given: Any
    if call.arrow_in:
        stream = arrow_stream.read_stream(call.body, "id", call.settings.max_batch)
        given = stream.column.combine_chunks()
        if not len(given):
            given = pa.array([], pa.null())
        options = parse(EmbeddingsOptions, stream.request, call.settings).asked
    else:
        request = parse(EmbeddingsRequest, call.body, call.settings)
        options, given = request.asked, objects_of(request, call.settings)
    version = model_version(call.lineage, call.access, options)
    dim = call.lineage.manifest(version).dim
    if options.dimensions not in (None, dim):
        raise RefusedError(
            400,
            "dimensions",
            f"Version {version} has {dim} dimensions and is not cut to {options.dimensions}; "
            "leave 'dimensions' out.",
            "dimensions",
        )
    side = call.state.reader.default_side if options.side is None else options.side
    if isinstance(given, list) and isinstance(given[0], Features):
        ids = None
        vectors, sources = _encoded(call, version, side, given)
        counts = {int(sources[0]): len(sources)}
    else:
        ids = as_ids(call.state.reader.store(side), given)
        found = _read(lambda: call.state.reader.embed(ids, version, side))
        vectors, sources, counts = found.vectors, found.sources, found.counts
        if options.missing == "error" and -1 in counts:
            raise missing_ids(found.missing, len(ids), side)
        call.drift.note(side, ids, sources)
    if not call.arrow_out:
        body = json_answers.embeddings_json(
            vectors,
            sources,
            _origin(call, version, side),
            _model(call, version),
            options.encoding_format == "base64",
        )
        return _answer(call, version, counts, body)
    metadata = _metadata(call, version, side)
    body = arrow_stream.write_vectors(ids, json_answers.finite(vectors), sources, metadata)
    return _answer(call, version, counts, body)


def search(call: Call) -> Answer:
    """`POST /v1/search`. Raises: EvergramError."""
    reader, settings = call.state.reader, call.settings
    options: SearchOptions
    request: Parsed[Any]
    given: Floats | None = None
    said = [call.fingerprint]
    if call.arrow_in:
        stream = arrow_stream.read_stream(call.body, "vector", settings.max_batch)
        said.append(stream.fingerprint)
        request = parse(SearchOptions, stream.request, settings)
        given = arrow_stream.vectors_of(stream.column)
    else:
        request = parse(SearchRequest, call.body, settings)
    options = request.asked
    version = call.access.version(call.lineage, options.version)
    _same_space(call, [*said, options.fingerprint], version)
    side = reader.default_side if options.side is None else options.side
    store = reader.store(side)
    if given is None:
        given = _queries(call, request, version, side)
    if options.k > settings.max_k:
        raise RefusedError(
            400, "limit", f"k is {options.k}; it may be at most {settings.max_k}.", "k"
        )
    if len(given) * options.k > settings.max_hits:
        raise RefusedError(
            413,
            "limit",
            f"{len(given)} queries of {options.k} results each are more than the "
            f"{settings.max_hits} results that one request may ask for; send fewer at a time.",
        )
    ids = None
    if options.ids is not None:
        check_count(request.count("ids"), settings.max_batch, "ids", "id")
        ids = as_ids(store, ids_of(request, "ids"))
    found = _read(lambda: reader.search(given, options.k, version, side, options.metric, ids))
    counts = Counter(version for hits in found for version in hits.versions.tolist())
    if not call.arrow_out:
        distinct = sorted(counts)
        origin, model = _origin(call, version, side), _model(call, version)
        return _answer(
            call, version, counts, json_answers.search_json(found, distinct, origin, model)
        )
    columns = arrow_stream.hit_columns(found, store.id_type)
    metadata = _metadata(call, version, side) | {"evergram.queries": str(len(found))}
    return _answer(call, version, counts, arrow_stream.write_stream(columns, metadata))


def transform(call: Call) -> Answer:
    """`POST /v1/transform`. Raises: EvergramError."""
    options: TransformOptions
    said = [call.fingerprint]
    if call.arrow_in:
        stream = arrow_stream.read_stream(call.body, "vector", call.settings.max_batch)
        said.append(stream.fingerprint)
        options = parse(TransformOptions, stream.request, call.settings).asked
        given = arrow_stream.vectors_of(stream.column)
    else:
        request = parse(TransformRequest, call.body, call.settings)
        options, given = request.asked, vectors_of(request, call.settings)
    source = call.access.version(call.lineage, options.source)
    target = call.access.version(call.lineage, options.target)
    _same_space(call, [*said, options.fingerprint], source)
    # What becomes too large is refused where it is written.
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = call.state.reader.transform(given, source, target)
    sources = np.full(len(vectors), source, dtype=np.int64)
    if not call.arrow_out:
        origin, model = _origin(call, target, None), _model(call, target)
        body = json_answers.transform_json(vectors, sources, origin, model)
    else:
        metadata = _metadata(call, target, None)
        body = arrow_stream.write_vectors(None, json_answers.finite(vectors), sources, metadata)
    return _answer(call, target, {source: len(vectors)}, body)


def _encoded(
    call: Call, version: int, side: str, objects: Sequence[Features]
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Objects encoded by production's encoder, read as a version; by its own where it is later."""
    source = max(version, call.lineage.production)
    vectors = call.state.opened.encoders.encode(source, side, objects)
    call.drift.note_vectors(side, source, vectors)
    sources = np.full(len(vectors), source, dtype=np.int64)
    return call.state.reader.transform(vectors, source, version), sources


def _queries(call: Call, request: Parsed[SearchRequest], version: int, side: str) -> Floats:
    asked = request.asked
    if asked.id is not None:
        whose = side if asked.id_side is None else asked.id_side
        ids = as_ids(call.state.reader.store(whose), [asked.id])
        found = _read(lambda: call.state.reader.embed(ids, version, whose))
        if (found.sources < 0).any():
            raise RefusedError(
                404,
                "unknown_id",
                f"The id {str(asked.id)[:40]} is not stored on side {whose!r}; search by "
                "another, by 'vector', or name the side it is of in 'id_side'.",
                "id",
            )
        return found.vectors
    if asked.vector is not None:
        return vector_of(request, call.settings)
    return vectors_of(request, call.settings)


def _same_space(call: Call, said: Iterable[str | None], version: int) -> None:
    """Refuse vectors of another space.

    Args:
        said: the fingerprints that the vectors are said to have, wherever one can be said.
    Raises: RefusedError: one is not that of the version.
    """
    mine = call.lineage.manifest(version).fingerprint
    for fingerprint in said:
        if fingerprint is not None and fingerprint != mine:
            raise RefusedError(
                409,
                "fingerprint",
                f"The vectors carry the fingerprint {fingerprint[:80]}; that of version {version} "
                f"is {mine}. They are of another space; name the version they are of.",
            )


def _read(found: Callable[[], R]) -> R:
    """A row may be of a version so new that it is only being taken up."""
    try:
        return found()
    except UnknownVersionError as error:
        raise RefusedError(
            503, "taking_up", "A new version is being taken up; try again."
        ) from error


def _origin(call: Call, version: int, side: str | None) -> dict[str, object]:
    fingerprint = call.lineage.manifest(version).fingerprint
    return {"version": version, "side": side, "fingerprint": fingerprint}


def _model(call: Call, version: int) -> str:
    return f"{call.lineage.name}@v{version}"


def _metadata(call: Call, version: int, side: str | None) -> dict[str, str]:
    """Of an answer's Arrow schema."""
    found = {
        "evergram.model": _model(call, version),
        "evergram.version": str(version),
        "evergram.fingerprint": call.lineage.manifest(version).fingerprint,
    }
    return found if side is None else {**found, "evergram.side": side}


def _answer(call: Call, version: int, sources: Mapping[int, int], body: bytes) -> Answer:
    media = arrow_stream.MEDIA if call.arrow_out else JSON
    return Answer(body, media, version, call.lineage.manifest(version).fingerprint, sources)
