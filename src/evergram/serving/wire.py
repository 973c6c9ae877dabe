"""Vectors as bytes: JSON and base64 written by hand, which is several times faster than building
an object for each number."""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError
from evergram.stores.store import Floats, Hits


def float_rows(vectors: Floats) -> list[bytes]:
    """Each row [n, D] as a JSON array: the fewest digits that give the same float32 again.

    Raises: DataError: a value is not finite, JSON has none.
    """
    if not np.isfinite(vectors).all():
        raise DataError("A vector is not finite as it would be read; nothing is answered.")
    rows, dim = vectors.shape
    if not rows or not dim:
        return [b"[]"] * rows
    text = pc.cast(pa.array(np.ascontiguousarray(vectors).ravel()), pa.string())
    starts = pa.array(np.arange(0, rows * dim + 1, dim, dtype=np.int32))
    joined = pc.binary_join(pa.ListArray.from_arrays(starts, text), ",")
    return [b"[%b]" % row.encode() for row in joined.to_pylist()]


def base64_rows(vectors: Floats) -> list[bytes]:
    """Each row [n, D] in base64, as little-endian float32; all rows in one call.

    For that each row is filled with zeros to a multiple of three bytes, and what they became is
    replaced by "=", as it stands after a row of that length.
    """
    rows, width = len(vectors), vectors.shape[1] * 4
    fill = -width % 3
    padded = np.zeros((rows, width + fill), dtype=np.uint8)
    padded[:, :width] = np.ascontiguousarray(vectors, dtype="<f4").view(np.uint8)
    text = binascii.b2a_base64(padded.data, newline=False)
    length, end = (width + fill) // 3 * 4, b"=" * fill
    return [text[at : at + length - fill] + end for at in range(0, rows * length, length)]


@lru_cache(maxsize=4096)
def _before(index: int, quote: bytes) -> bytes:
    """What stands before the vector of a row."""
    comma = b"," if index else b""
    return b'%b{"object":"embedding","index":%d,"embedding":%b' % (comma, index, quote)


def embeddings_json(
    vectors: Floats, sources: Sequence[int], origin: dict[str, object], model: str, base64: bool
) -> bytes:
    """`schemas.EmbeddingsAnswer`."""
    rest = {
        "model": model,
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
        "evergram": {**origin, "computed_from": []},
    }
    quote = b'"' if base64 else b""
    parts = [quote + b"}"] * (3 * len(vectors))
    parts[0::3] = [_before(i, quote) for i in range(len(vectors))]
    parts[1::3] = base64_rows(vectors) if base64 else float_rows(vectors)
    # The list of sources is the last of all, and is written faster by hand.
    end = b"%b%b]}}" % (_compact(rest)[1:-3], str(list(sources)).replace(" ", "")[1:-1].encode())
    return b'{"object":"list","data":[%b],%b' % (b"".join(parts), end)


def transform_json(
    vectors: Floats, sources: Sequence[int], origin: dict[str, object], model: str
) -> bytes:
    """`schemas.TransformAnswer`."""
    rest = {"model": model, "evergram": {**origin, "computed_from": list(sources)}}
    rows = b",".join(float_rows(vectors))
    return b'{"object":"list","vectors":[%b],%b' % (rows, _compact(rest)[1:])


def search_json(
    found: Sequence[Hits], sources: Sequence[int], origin: dict[str, object], model: str
) -> bytes:
    """`schemas.SearchAnswer`. Raises: DataError: a score is not finite."""
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
    if not all(np.isfinite(hits.scores).all() for hits in found):
        raise DataError("A score is not finite; give shorter vectors.")
    answer = {
        "object": "list",
        "data": data,
        "model": model,
        "evergram": {**origin, "computed_from": list(sources)},
    }
    return _compact(answer)


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
