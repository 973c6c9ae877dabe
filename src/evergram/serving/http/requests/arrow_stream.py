"""Rows of ids and vectors as an Arrow stream; what comes from outside is trusted in nothing."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError
from evergram.stores.store import Floats, Hits

Sources = npt.NDArray[np.int64]
MEDIA = "application/vnd.apache.arrow.stream"
REQUEST = b"evergram.request"
FINGERPRINT = b"evergram.fingerprint"
# So many columns are named in a refusal.
_NAMED = 5
# What stands after the last message of a stream.
_END = struct.pack("<Ii", 0xFFFFFFFF, 0)


@dataclass(frozen=True)
class Stream:
    """What a request as a stream holds.

    Args:
        column: its rows.
        request: JSON, all else that it asks for.
        fingerprint: that the rows are said to have; None where nothing is said.
    """

    column: pa.ChunkedArray
    request: bytes
    fingerprint: str | None


def read_stream(body: bytes | bytearray, column: str, limit: int) -> Stream:
    """The one column that a request has, and what its metadata says.

    Compressed batches are refused: a few bytes of them may be any number of rows. The type of each
    message is looked at before Arrow reads it: Arrow takes it for granted, and a record batch read
    as a schema ends the process.

    Args:
        column: "id" or "vector".
        limit: rows that there may be.
    Raises: DataError: it is not such a stream.
    """
    try:
        messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(body))
        first = messages.read_next_message()
        if first.type != "schema":
            raise DataError(f"The Arrow stream begins with a {first.type}; send its schema first.")
        schema = pa.ipc.read_schema(first)
        _check_schema(schema, column)
        rows = 0
        batches: list[pa.RecordBatch] = []
        for message in _each(messages):
            if message.type != "record batch":
                raise DataError(f"The Arrow stream holds a {message.type}; send record batches.")
            if _is_compressed(message.metadata.to_pybytes()):
                raise DataError("The Arrow stream is compressed; send it without compression.")
            batch = pa.ipc.read_record_batch(message, schema)
            rows += batch.num_rows
            if rows > limit or len(batches) >= limit:
                raise DataError(
                    f"The Arrow stream has more than {limit} rows or batches; send fewer."
                )
            batch.validate(full=True)
            batches.append(batch)
    except (pa.ArrowException, OSError, ValueError, struct.error, StopIteration) as error:
        if isinstance(error, DataError):
            raise
        raise DataError("The body is not an Arrow stream that can be read.") from error
    table = pa.Table.from_batches(batches, schema)
    found = table[column]
    if found.null_count:
        raise DataError(f"The column {column!r} has a null in row {_first_null(found)}.")
    metadata = schema.metadata or {}
    said = metadata.get(FINGERPRINT)
    fingerprint = None if said is None else said.decode(errors="replace")
    return Stream(found, metadata.get(REQUEST, b"{}"), fingerprint)


def vectors_of(column: pa.ChunkedArray) -> Floats:
    """[n, D] of a column of lists. Raises: DataError: they are not of one length."""
    rows = column.combine_chunks()
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    flat = pc.list_flatten(rows)
    if flat.null_count:
        raise DataError("A vector has a null in it.")
    lengths = pc.unique(pc.list_value_length(rows)).to_pylist()
    if len(lengths) > 1:
        raise DataError("The vectors are not all of one length.")
    # A float64 past float32's range becomes infinite, and is refused where it is read.
    with np.errstate(over="ignore"):
        found: Floats = np.asarray(flat.to_numpy(zero_copy_only=False), dtype=np.float32)
    return found.reshape(len(rows), lengths[0] if lengths else 0)


def write_stream(columns: Mapping[str, pa.Array], metadata: Mapping[str, str]) -> bytes:
    """Columns as one batch, under a schema with this metadata."""
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    batch = batch.replace_schema_metadata(dict(metadata))
    return b"".join((memoryview(batch.schema.serialize()), memoryview(batch.serialize()), _END))


def write_vectors(
    ids: pa.Array | None, vectors: Floats, sources: Sources, metadata: Mapping[str, str]
) -> bytes:
    """The columns "id", where there are ids, "vector" [n, D] and "computed_from" [n].

    Where all are numbers, what stands before them in a stream depends on their shape alone, and is
    kept: Arrow takes longer to find it again than an answer of a hundred rows may.
    """
    if ids is not None and not pa.types.is_int64(ids.type):
        return write_stream(_vector_columns(ids, vectors, sources), metadata)
    head = _head(ids is not None, vectors.shape, tuple(metadata.items()))
    parts = [head]
    if ids is not None:
        parts.append(ids.to_numpy().astype("<i8", copy=False).tobytes())
    parts += [np.ascontiguousarray(vectors, dtype="<f4").tobytes(), _padding(vectors.shape)]
    parts += [sources.astype("<i8", copy=False).tobytes(), _END]
    return b"".join(parts)


@lru_cache(maxsize=256)
def _head(with_ids: bool, shape: tuple[int, int], metadata: tuple[tuple[str, str], ...]) -> bytes:
    """What `write_vectors` puts before the numbers: taken from a stream of as many zeros."""
    zeros = np.zeros(shape[0], dtype=np.int64)
    vectors = np.zeros(shape, dtype=np.float32)
    ids = pa.array(zeros) if with_ids else None
    whole = write_stream(_vector_columns(ids, vectors, zeros), dict(metadata))
    numbers = zeros.nbytes * (1 + with_ids) + vectors.nbytes + len(_padding(shape))
    return whole[: len(whole) - len(_END) - numbers]


def _padding(shape: tuple[int, ...]) -> bytes:
    """After float32 of a shape: Arrow begins every column at a multiple of eight bytes."""
    return bytes(-4 * shape[0] * shape[1] % 8)


def _vector_columns(ids: pa.Array | None, vectors: Floats, sources: Sources) -> dict[str, pa.Array]:
    flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).ravel())
    found = {} if ids is None else {"id": ids}
    return found | {
        "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        "computed_from": pa.array(sources),
    }


def hit_columns(found: Sequence[Hits], id_type: pa.DataType) -> dict[str, pa.Array]:
    """One row a hit: which query, id, score, and what the row was computed from."""
    lengths = [len(hits) for hits in found]
    parts = [hits.ids.cast(id_type) for hits in found] or [pa.array([], id_type)]
    return {
        "query": pa.array(np.repeat(np.arange(len(found), dtype=np.int32), lengths)),
        "id": pa.concat_arrays(parts),
        "score": pa.array(_joined([hits.scores for hits in found], np.float32)),
        "computed_from": pa.array(_joined([hits.versions for hits in found], np.int64)),
    }


def _joined(parts: list[Any], kind: type) -> Any:
    return np.concatenate(parts) if parts else np.zeros(0, kind)


def _each(messages: Any) -> Any:
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return
        if message is None:
            return
        yield message


def _check_schema(schema: pa.Schema, column: str) -> None:
    if schema.names != [column]:
        has = ", ".join(name[:40] for name in schema.names[:_NAMED]) or "none"
        has += ", …" if len(schema.names) > _NAMED else ""
        raise DataError(f"The Arrow stream has the columns {has}; it takes one, {column!r}.")
    kind = schema.field(column).type
    if column == "id":
        fits = any(
            test(kind)
            for test in (
                pa.types.is_int64,
                pa.types.is_int32,
                pa.types.is_string,
                pa.types.is_large_string,
                pa.types.is_null,
            )
        )
        wanted = "int64 or string"
    else:
        is_list = (
            pa.types.is_list(kind) or pa.types.is_large_list(kind)
        ) or pa.types.is_fixed_size_list(kind)
        fits = is_list and pa.types.is_floating(kind.value_type)
        wanted = "lists of float32"
    if not fits:
        raise DataError(f"The column {column!r} is {kind}; it must be {wanted}.")


def _first_null(column: pa.ChunkedArray) -> int:
    return int(pc.index(pc.is_null(column), True).as_py()) + 1


def _is_compressed(metadata: bytes) -> bool:
    """Whether the flatbuffer of a record batch has the field `compression`.

    Source: Arrow's `Message.fbs`: Message.header is its third field, RecordBatch.compression the
    fourth.
    """
    header = _field(metadata, struct.unpack_from("<I", metadata, 0)[0], 2)
    if header is None:
        return False
    return _field(metadata, header + struct.unpack_from("<I", metadata, header)[0], 3) is not None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Where a field of a flatbuffer's table is; None where it is left out."""
    entries = table - struct.unpack_from("<i", metadata, table)[0]
    at = 4 + 2 * number
    if at >= struct.unpack_from("<H", metadata, entries)[0]:
        return None
    offset: int = struct.unpack_from("<H", metadata, entries + at)[0]
    return table + offset if offset else None
