"""Detect ONNX models that keep numbers in other files, without running any of the model.

A tensor of a model may name another file that holds its numbers. Such a file has no hash in the
lineage, and would be looked for in the folder that the publisher happens to run in.

Source: onnx.proto of ONNX (fields and their numbers); the wire format of protocol buffers.
"""

from __future__ import annotations

from collections.abc import Iterator

# For each message that leads to tensors: the message in each field, by its number.
FIELDS: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
}
# Fields of a tensor: the name of its file, and a flag that it has one.
EXTERNAL_DATA, DATA_LOCATION = 13, 14

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def has_external_data(model: bytes) -> bool:
    """Return True if a tensor in any graph, attribute or function of the model is in another file.

    Raises: ValueError: the bytes are not a message of protocol buffers.
    """
    waiting = [("ModelProto", memoryview(model))]
    while waiting:
        kind, message = waiting.pop()
        for field, wire, value in _fields(message):
            if kind == "TensorProto":
                if field == EXTERNAL_DATA or (field == DATA_LOCATION and value):
                    return True
            elif wire == _BYTES and field in FIELDS[kind] and isinstance(value, memoryview):
                waiting.append((FIELDS[kind][field], value))
    return False


def _fields(message: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield number, wire type and content of each field."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag >= 1 << 32:
            # Some readers keep only the lower bits, and would see another field.
            raise ValueError("a field has a number that is too large")
        field, wire = tag >> 3, tag & 7
        value: int | memoryview
        if wire == _VARINT:
            value, at = _varint(message, at)
        elif wire in (_FIXED64, _FIXED32, _BYTES):
            if wire == _BYTES:
                size, at = _varint(message, at)
            else:
                size = 8 if wire == _FIXED64 else 4
            if at + size > len(message):
                raise ValueError("a field ends after its message")
            value = message[at : at + size]
            at += size
        else:
            raise ValueError(f"a field has the wire type {wire}")
        yield field, wire, value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("a number ends after its message")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if not byte & 0x80:
            return value, at
    raise ValueError("a number has more than ten bytes")
