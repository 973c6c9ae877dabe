"""Answers as JSON. Vectors go from arrays to text without a Python object for each number."""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from evergram.errors import DataError
from evergram.stores.store import Floats, Hits

Sources = npt.NDArray[np.int64]
# Bytes of a frame that is kept for the next answer of its size.
_KEPT = 1 << 18


def base64_rows(vectors: Floats) -> npt.NDArray[np.uint8]:
    """Rows [n, D] as text [n, L] of base64, little-endian float32; all rows in one call.

    For that each row is filled with zeros to a multiple of three bytes, and what they became is
    replaced by "=", as it stands after a row of that length.
    """
    rows, width = len(vectors), vectors.shape[1] * 4
    fill = -width % 3
    padded = np.zeros((rows, width + fill), dtype=np.uint8)
    padded[:, :width] = np.ascontiguousarray(vectors, dtype="<f4").view(np.uint8)
    text = bytearray(binascii.b2a_base64(padded.data, newline=False))
    found = np.frombuffer(text, np.uint8).reshape(rows, (width + fill) // 3 * 4)
    if fill:
        found[:, -fill:] = ord("=")
    return found


def _frame(rows: int, length: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """`data` of an answer with room for texts of a length, and where each of them is."""
    before = [
        b'%b{"object":"embedding","index":%d,"embedding":"' % (b"," if i else b"[", i)
        for i in range(rows)
    ]
    room = b"".join(part + b" " * length + b'"}' for part in before) + b"]"
    ends = np.cumsum([len(part) + length + 2 for part in before])
    return np.frombuffer(room, np.uint8), ends - length - 2


_kept_frame = lru_cache(64)(_frame)


def _base64_data(vectors: Floats) -> bytes:
    """`data` of an answer, of at least one row."""
    texts = base64_rows(vectors)
    rows, length = texts.shape
    frame, places = (_kept_frame if rows * length < _KEPT else _frame)(rows, length)
    found = frame.copy()
    # From every byte on, the next `length`.
    windows: npt.NDArray[np.uint8]
    windows = np.ndarray((len(found) - length + 1, length), np.uint8, found, strides=(1, 1))
    windows[places] = texts
    return found.tobytes()


def embeddings_json(
    vectors: Floats, sources: Sources, origin: Mapping[str, object], model: str, base64: bool
) -> bytes:
    """`schemas.EmbeddingsAnswer`. Raises: DataError: a value is not finite."""
    vectors = finite(vectors)
    data: object
    if base64 and vectors.size:
        data = orjson.Fragment(_base64_data(vectors))
    else:
        data = [
            {"object": "embedding", "index": i, "embedding": "" if base64 else row}
            for i, row in enumerate(vectors)
        ]
    return _json(
        {
            "object": "list",
            "data": data,
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
            "vectors": finite(vectors),
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


def finite(vectors: Floats) -> Floats:
    """The same, C-ordered. Raises: DataError: a value is not finite."""
    if not np.isfinite(vectors).all():
        raise DataError("A vector is not finite as it would be read; nothing is answered.")
    return np.ascontiguousarray(vectors)


def _json(answer: Mapping[str, Any]) -> bytes:
    """Of a float32 as few digits as give the same float32 again."""
    found: bytes = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return found
