"""Answers as JSON. Vectors go from arrays to text without a Python object for each number."""

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


def base64_rows(vectors: Floats) -> list[str]:
    """Each row [n, D] in base64, as little-endian float32; all rows in one call.

    For that each row is filled with zeros to a multiple of three bytes, and what they became is
    replaced by "=", as it stands after a row of that length.
    """
    rows, width = len(vectors), vectors.shape[1] * 4
    fill = -width % 3
    padded = np.zeros((rows, width + fill), dtype=np.uint8)
    padded[:, :width] = np.ascontiguousarray(vectors, dtype="<f4").view(np.uint8)
    text = binascii.b2a_base64(padded.data, newline=False).decode("ascii")
    length, end = (width + fill) // 3 * 4, "=" * fill
    return [text[at : at + length - fill] + end for at in range(0, rows * length, length)]


def embeddings_json(
    vectors: Floats, sources: Sources, origin: Mapping[str, object], model: str, base64: bool
) -> bytes:
    """`schemas.EmbeddingsAnswer`. Raises: DataError: a value is not finite."""
    rows = base64_rows(_finite(vectors)) if base64 else _finite(vectors)
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


def transform_json(
    vectors: Floats, sources: Sources, origin: Mapping[str, object], model: str
) -> bytes:
    """`schemas.TransformAnswer`. Raises: DataError: a value is not finite."""
    return _json(
        {
            "object": "list",
            "vectors": _finite(vectors),
            "model": model,
            "evergram": {**origin, "computed_from": sources},
        }
    )


def search_json(
    found: Sequence[Hits], sources: Sequence[int], origin: Mapping[str, object], model: str
) -> bytes:
    """`schemas.SearchAnswer`. Raises: DataError: a score is not finite."""
    if not all(np.isfinite(hits.scores).all() for hits in found):
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
        for i, hits in enumerate(found)
    ]
    origin = {**origin, "computed_from": list(sources)}
    return _json({"object": "list", "data": data, "model": model, "evergram": origin})


def _finite(vectors: Floats) -> Floats:
    """C-ordered, for JSON. Raises: DataError: a value is not finite; JSON has no word for it."""
    if not np.isfinite(vectors).all():
        raise DataError("A vector is not finite as it would be read; nothing is answered.")
    return np.ascontiguousarray(vectors)


def _json(answer: Mapping[str, Any]) -> bytes:
    """Of a float32 as few digits as give the same float32 again."""
    found: bytes = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return found
