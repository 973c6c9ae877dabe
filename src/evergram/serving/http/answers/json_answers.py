"""Answers as JSON, from arrays to text."""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from evergram.errors import DataError
from evergram.stores.store import Floats, Hits

Sources = npt.NDArray[np.int64]


def embeddings_json(
    vectors: Floats, sources: Sources, origin: Mapping[str, object], model: str, base64: bool
) -> bytes:
    """Return `schemas.EmbeddingsAnswer` of vectors [n, D], computed from the versions `sources`.

    Args:
        base64: write each vector as base64 of little-endian float32, not as numbers.
    Raises: DataError: a value is not finite.
    """
    vectors = finite(vectors)
    rows = base64_rows(vectors) if base64 else vectors
    return _json(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)
            ],
            "model": model,
            "usage": {"prompt_tokens": 0, "total_tokens": 0},
            "evergram": {**origin, "computed_from": sources},
        }
    )


def base64_rows(vectors: Floats) -> list[str]:
    """Return each row of vectors [n, D] as base64 of little-endian float32."""
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    return [binascii.b2a_base64(row.data, newline=False).decode() for row in rows]


def transform_json(
    vectors: Floats, sources: Sources, origin: Mapping[str, object], model: str
) -> bytes:
    """Return `schemas.TransformAnswer` of vectors [n, D].

    Raises: DataError: a value is not finite.
    """
    return _json(
        {
            "object": "list",
            "vectors": finite(vectors),
            "model": model,
            "evergram": {**origin, "computed_from": sources},
        }
    )


def search_json(
    results: Sequence[Hits], sources: Sequence[int], origin: Mapping[str, object], model: str
) -> bytes:
    """Return `schemas.SearchAnswer` of the hits of each query.

    Args:
        sources: the versions that the hits were computed from, each once.
    Raises: DataError: a score is not finite.
    """
    if not all(np.isfinite(hits.scores).all() for hits in results):
        raise DataError("A score is not finite; give shorter vectors.")
    data = [
        {
            "object": "search_result",
            "index": i,
            "hits": [
                {"id": key, "score": score, "computed_from": version}
                for key, score, version in zip(
                    hits.ids.to_pylist(),
                    hits.scores.tolist(),
                    hits.versions.tolist(),
                    strict=True,
                )
            ],
        }
        for i, hits in enumerate(results)
    ]
    origin = {**origin, "computed_from": list(sources)}
    return _json({"object": "list", "data": data, "model": model, "evergram": origin})


def finite(vectors: Floats) -> Floats:
    """Return the vectors, C-ordered. Raises: DataError: a value is not finite."""
    if not np.isfinite(vectors).all():
        raise DataError(
            "A vector is not finite at the version that it is read as; give shorter vectors."
        )
    return np.ascontiguousarray(vectors)


def _json(answer: Mapping[str, Any]) -> bytes:
    """Return JSON in which a float32 has the fewest digits that give the same float32 again."""
    text: bytes = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return text
