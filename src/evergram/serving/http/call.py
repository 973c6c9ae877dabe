"""One call of a route of vectors, and its answer as JSON or as an Arrow stream."""

from __future__ import annotations

import binascii
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
        encoding: "float" or "base64" (of little-endian float32) of embeddings in OpenAI's form;
            None of plain vectors.
    Raises: DataError: a value is not finite.
    """
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
    counts = Counter(sources.tolist()) if counts is None else counts
    return _answer(call, version, {"side": side}, answer, counts)


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
        parts = memoryview(batch.schema.serialize()), memoryview(batch.serialize()), _END_OF_STREAM
        return Answer(b"".join(parts), ARROW, version, fingerprint, counts)
    named["computed_from"] = answer.pop("computed_from")
    fields = {"object": "list", **answer, "model": model, "evergram": named}
    # A float32 has the fewest digits that give the same float32 again.
    body = orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
    return Answer(body, JSON, version, fingerprint, counts)
