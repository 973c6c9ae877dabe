"""Read requests that are Arrow streams; nothing in a stream from outside is trusted."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError
from evergram.stores.store import Floats

REQUEST = b"evergram.request"
FINGERPRINT = b"evergram.fingerprint"
# Columns that an error names, at most.
_NAMED = 5


@dataclass(frozen=True)
class Stream:
    """A request that was sent as a stream: its rows, the JSON of the other fields, and the
    fingerprint that it claims for the rows, None where it has none."""

    column: pa.ChunkedArray
    request: bytes
    fingerprint: str | None


def read_stream(body: bytes | bytearray, column: str, limit: int) -> Stream:
    """Return the one column of a request, and its metadata.

    Compressed batches are refused: a few bytes of them may become any number of rows. The type of
    each message is checked before Arrow reads it: Arrow takes it for granted, and a record batch
    that is read as a schema ends the process.

    Args:
        column: "id" or "vector".
        limit: rows that the stream may have.
    Raises: DataError: the body is not a stream of that column, or is longer.
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
        for message in _remaining(messages):
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
    rows_of_column = table[column]
    if rows_of_column.null_count:
        raise DataError(f"The column {column!r} has a null in row {_first_null(rows_of_column)}.")
    metadata = schema.metadata or {}
    claimed = metadata.get(FINGERPRINT)
    fingerprint = None if claimed is None else claimed.decode(errors="replace")
    return Stream(rows_of_column, metadata.get(REQUEST, b"{}"), fingerprint)


def vectors_of(column: pa.ChunkedArray) -> Floats:
    """Return a column of lists as vectors [n, D]. Raises: DataError: their lengths differ."""
    rows = column.combine_chunks()
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    flat = pc.list_flatten(rows)
    if flat.null_count:
        raise DataError("A vector has a null in it; send numbers only.")
    lengths = pc.unique(pc.list_value_length(rows)).to_pylist()
    if len(lengths) > 1:
        raise DataError("The vectors are not all of one length.")
    # A float64 beyond float32's range becomes infinite; the reader refuses it.
    with np.errstate(over="ignore"):
        numbers: Floats = np.asarray(flat.to_numpy(zero_copy_only=False), dtype=np.float32)
    return numbers.reshape(len(rows), lengths[0] if lengths else 0)


def _remaining(messages: Any) -> Iterator[Any]:
    with suppress(StopIteration):
        while (message := messages.read_next_message()) is not None:
            yield message


def _check_schema(schema: pa.Schema, column: str) -> None:
    if schema.names != [column]:
        has = ", ".join(name[:40] for name in schema.names[:_NAMED]) or "none"
        has += ", …" if len(schema.names) > _NAMED else ""
        raise DataError(f"The Arrow stream has the columns {has}; it takes one, {column!r}.")
    kind = schema.field(column).type
    if column == "id":
        fits = kind in (pa.int64(), pa.int32(), pa.string(), pa.large_string(), pa.null())
        wanted = "int64 or string"
    else:
        lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        fits = any(is_list(kind) for is_list in lists) and pa.types.is_floating(kind.value_type)
        wanted = "lists of float32"
    if not fits:
        raise DataError(f"The column {column!r} is {kind}; it must be {wanted}.")


def _first_null(column: pa.ChunkedArray) -> int:
    return int(pc.index(pc.is_null(column), True).as_py()) + 1


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the flatbuffer of a record batch has the field `compression`.

    pyarrow has no way to ask before it decompresses: a few bytes would become any number of rows.

    Source: Arrow's `Message.fbs`: the header is the third field of Message, the compression the
        fourth of RecordBatch.
    """
    header = _field(metadata, struct.unpack_from("<I", metadata, 0)[0], 2)
    if header is None:
        return False
    return _field(metadata, header + struct.unpack_from("<I", metadata, header)[0], 3) is not None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Return the position of a field of a flatbuffer's table; None where it is absent."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    entry = 4 + 2 * number
    if entry >= struct.unpack_from("<H", metadata, vtable)[0]:
        return None
    offset: int = struct.unpack_from("<H", metadata, vtable + entry)[0]
    return table + offset if offset else None
