"""Answers as Arrow streams."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.stores.store import Floats, Hits

Sources = npt.NDArray[np.int64]
MEDIA = "application/vnd.apache.arrow.stream"
# The mark after the last message of a stream.
END_OF_STREAM = struct.pack("<Ii", 0xFFFFFFFF, 0)


def write_stream(columns: Mapping[str, pa.Array], metadata: Mapping[str, str]) -> bytes:
    """Return a stream of one batch of these columns, with this metadata in its schema."""
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    batch = batch.replace_schema_metadata(dict(metadata))
    parts = memoryview(batch.schema.serialize()), memoryview(batch.serialize()), END_OF_STREAM
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
    """Return one row a hit: the number of its query, its id, score, and source version."""
    lengths = [len(hits) for hits in results]
    ids = [hits.ids.cast(id_type) for hits in results] or [pa.array([], id_type)]
    return {
        "query": pa.array(np.repeat(np.arange(len(results), dtype=np.int32), lengths)),
        "id": pa.concat_arrays(ids),
        "score": pa.array(_joined([hits.scores for hits in results], np.float32)),
        "computed_from": pa.array(_joined([hits.versions for hits in results], np.int64)),
    }


def _joined(parts: list[Any], kind: type) -> Any:
    return np.concatenate(parts) if parts else np.zeros(0, kind)
