"""Around pyarrow's reader: tell from a message's flatbuffer whether its batch is compressed.

pyarrow decompresses a batch when it reads it, and has no way to ask first: a few bytes from
any client would become any number of rows.
"""

from __future__ import annotations

import struct


def is_compressed(metadata: bytes) -> bool:
    """Return whether the metadata of a record batch has the field `compression`.

    Args:
        metadata: the flatbuffer of the message, `pyarrow.ipc.Message.metadata`.
    Raises: struct.error: it is cut off.
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
