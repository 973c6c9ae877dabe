"""One call of a route of vectors, and its answer as JSON or as an Arrow stream."""

from __future__ import annotations

import binascii
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from evergram.errors import DataError, UnknownVersionError
from evergram.lineage.lineage import Lineage
from evergram.serving.http.access import Access
from evergram.serving.http.errors import RefusedError
from evergram.serving.http.json_body import Body
from evergram.serving.metrics import Drift
from evergram.serving.service import ServedState
from evergram.serving.settings import ServiceSettings
from evergram.stores.store import Floats, Hits

Sources = npt.NDArray[np.int64]
ARROW, JSON = "application/vnd.apache.arrow.stream", "application/json"
# The mark after the last message of a stream.
_END_OF_STREAM = struct.pack("<Ii", 0xFFFFFFFF, 0)
R = TypeVar("R")


class EncoderWaitError(Exception):
    """A request needs an encoder of text, for which its thread may not wait."""


@dataclass(frozen=True)
class Call:
    """One request, and everything that its answer is made from.

    Args:
        size: bytes of the body.
        content: returns the body.
        arrow_in, arrow_out: whether the body is an Arrow stream, and whether the answer is to be.
        fingerprint: fingerprint that the request's header claims for its vectors.
        may_wait: whether its thread may wait for an encoder of text.
    """

    state: ServedState
    access: Access
    settings: ServiceSettings
    drift: Drift
    size: int
    content: Callable[[], Body]
    arrow_in: bool
    arrow_out: bool
    fingerprint: str | None
    may_wait: bool = False

    @property
    def lineage(self) -> Lineage:
        return self.state.lineage


@dataclass(frozen=True)
class Answer:
    """An answer as it is sent.

    Args:
        version: the version that the rows are read as.
        sources: version to the number of rows that were computed from it.
        reranked: objects that a search re-ranked, by where their vector came from.
    """

    body: bytes
    media: str
    version: int
    fingerprint: str
    sources: Mapping[int, int]
    reranked: Mapping[str, int] = field(default_factory=dict)


def looked_up(lookup: Callable[[], R]) -> R:
    """Look up rows in the stores, and return the result.

    Raises: RefusedError: a row is of a version so new that the service has not loaded it yet.
    """
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
    counts: Mapping[int, int] | None = None,
    ids: pa.Array | None = None,
    encoding: str | None = None,
) -> Answer:
    """Return the answer of vectors [n, D], computed from the versions `sources` [n].

    Args:
        counts: rows of each of `sources`, where they are known.
        encoding: "float" or "base64" of embeddings in OpenAI's form; None of plain vectors.
    Raises: DataError: a value is not finite.
    """
    origin, model = _origin(call, version, side)
    if call.arrow_out:
        body = write_stream(vector_columns(ids, finite(vectors), sources), _metadata(origin, model))
    elif encoding is None:
        body = transform_json(vectors, sources, origin, model)
    else:
        body = embeddings_json(vectors, sources, origin, model, encoding == "base64")
    counts = Counter(sources.tolist()) if counts is None else counts
    return _answer(call, version, body, counts)


def hits_answer(
    call: Call,
    version: int,
    side: str,
    results: Sequence[Hits],
    *,
    calibrated: bool = False,
    reranked: Mapping[str, int] | None = None,
) -> Answer:
    """Return the answer of the hits of each query. Raises: DataError: a score is not finite."""
    origin, model = _origin(call, version, side)
    counts = Counter(source for hits in results for source in hits.versions.tolist())
    scores = {"scores": "calibrated"} if calibrated else {}
    if call.arrow_out:
        columns = hit_columns(results, call.state.reader.store(side).id_type)
        more = {"queries": len(results), **scores}
        body = write_stream(columns, _metadata({**origin, **more}, model))
    else:
        body = search_json(results, sorted(counts), {**origin, **scores}, model)
    return _answer(call, version, body, counts, reranked)


def _origin(call: Call, version: int, side: str | None) -> tuple[dict[str, object], str]:
    """Return the version, side and fingerprint of an answer, and its model's name: "shop@v3"."""
    fingerprint = call.lineage.manifest(version).fingerprint
    origin: dict[str, object] = {"version": version, "side": side, "fingerprint": fingerprint}
    return origin, f"{call.lineage.name}@v{version}"


def _metadata(origin: Mapping[str, object], model: str) -> dict[str, str]:
    values = {"model": model, **origin}
    return {f"evergram.{key}": str(value) for key, value in values.items() if value is not None}


def _answer(
    call: Call,
    version: int,
    body: bytes,
    counts: Mapping[int, int],
    reranked: Mapping[str, int] | None = None,
) -> Answer:
    media = ARROW if call.arrow_out else JSON
    fingerprint = call.lineage.manifest(version).fingerprint
    return Answer(body, media, version, fingerprint, counts, reranked or {})


def embeddings_json(
    vectors: Floats, sources: Sources, origin: Mapping[str, object], model: str, base64: bool
) -> bytes:
    """Return `EmbeddingsAnswer` of vectors [n, D], computed from the versions `sources`.

    Args:
        base64: write each vector as base64 of little-endian float32, not as numbers.
    Raises: DataError: a value is not finite.
    """
    vectors = finite(vectors)
    rows: Sequence[str] | Floats = vectors
    if base64:
        floats = np.ascontiguousarray(vectors, dtype="<f4")
        rows = [binascii.b2a_base64(row.data, newline=False).decode() for row in floats]
    data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    return _json(data=data, model=model, usage=usage, evergram={**origin, "computed_from": sources})


def transform_json(
    vectors: Floats, sources: Sources, origin: Mapping[str, object], model: str
) -> bytes:
    """Return `TransformAnswer` of vectors [n, D]. Raises: DataError: a value is not finite."""
    origin = {**origin, "computed_from": sources}
    return _json(vectors=finite(vectors), model=model, evergram=origin)


def search_json(
    results: Sequence[Hits], sources: Sequence[int], origin: Mapping[str, object], model: str
) -> bytes:
    """Return `SearchAnswer` of the hits of each query.

    Args:
        sources: the versions that the hits were computed from, each once.
    Raises: DataError: a score is not finite.
    """
    if not all(np.isfinite(hits.scores).all() for hits in results):
        raise DataError("A score is not finite; give shorter vectors.")
    names = ("id", "score", "computed_from")
    data = []
    for i, hits in enumerate(results):
        columns = hits.ids.to_pylist(), hits.scores.tolist(), hits.versions.tolist()
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        data.append({"object": "search_result", "index": i, "hits": rows})
    return _json(data=data, model=model, evergram={**origin, "computed_from": list(sources)})


def finite(vectors: Floats) -> Floats:
    """Return the vectors, C-ordered. Raises: DataError: a value is not finite."""
    if not np.isfinite(vectors).all():
        raise DataError(
            "A vector is not finite at the version that it is read as; give shorter vectors."
        )
    return np.ascontiguousarray(vectors)


def _json(**answer: Any) -> bytes:
    """Return JSON in which a float32 has the fewest digits that give the same float32 again."""
    text: bytes = orjson.dumps({"object": "list", **answer}, option=orjson.OPT_SERIALIZE_NUMPY)
    return text


def write_stream(columns: Mapping[str, pa.Array], metadata: Mapping[str, str]) -> bytes:
    """Return a stream of one batch of these columns, with this metadata in its schema."""
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    batch = batch.replace_schema_metadata(dict(metadata))
    parts = memoryview(batch.schema.serialize()), memoryview(batch.serialize()), _END_OF_STREAM
    return b"".join(parts)


def vector_columns(ids: pa.Array | None, vectors: Floats, sources: Sources) -> dict[str, pa.Array]:
    """Return the columns "id" where there are ids, "vector" [n, D] and "computed_from" [n]."""
    flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).ravel())
    columns = {} if ids is None else {"id": ids}
    return columns | {
        "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        "computed_from": pa.array(sources),
    }


def hit_columns(results: Sequence[Hits], id_type: pa.DataType) -> dict[str, pa.Array]:
    """Return one row per hit: the number of its query, its id, score, and source version."""
    lengths = [len(hits) for hits in results]
    scores = np.concatenate([hits.scores for hits in results]).astype(np.float32, copy=False)
    return {
        "query": pa.array(np.repeat(np.arange(len(results), dtype=np.int32), lengths)),
        "id": pa.concat_arrays([hits.ids.cast(id_type) for hits in results]),
        "score": pa.array(scores),
        "computed_from": pa.array(np.concatenate([hits.versions for hits in results])),
    }
