"""Mutated Arrow streams for every route that takes one, answered in this process.

    python -m tests.support.mutated_streams FOLDER COUNT SEED

FOLDER holds two lineages, `numbers` and `texts`. Every body is written to FOLDER/last before it is
tried, as a damaged stream may end the process. Prints how often each route answered with which
status, as JSON.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.lineages import DIMS
from tests.support.running_service import service_of

from evergram.serving import vector_routes
from evergram.serving.access import Access
from evergram.serving.answers import Call
from evergram.serving.errors import error_response
from evergram.serving.service import ServedState
from evergram.serving.settings import ServiceSettings

ROUTES = {
    "embeddings": vector_routes.embeddings,
    "search": vector_routes.search,
    "transform": vector_routes.transform,
}
SETTINGS = ServiceSettings(max_batch=64, max_k=20, max_hits=500, max_dim=256)
# Lengths and offsets that are past something.
EXTREMES = (0, 1, -1, 2**31 - 1, -(2**31), 2**62, -(2**62), 2**63 - 1, 21, 64, 65)


def messages(body: bytes) -> list[bytes]:
    """Return the encapsulated messages of a stream, without its end."""
    parts, at = [], 0
    while at + 8 <= len(body) and (length := struct.unpack_from("<i", body, at + 4)[0]):
        message = pa.ipc.read_message(pa.py_buffer(body[at:]))
        end = at + 8 + length + (0 if message.body is None else message.body.size)
        end += -end % 8
        parts.append(body[at:end])
        at = end
    return parts


def stream(column: str, rows: pa.Array, asked: Any, batches: int, **write: Any) -> bytes:
    schema = pa.schema([(column, rows.type)], {"evergram.request": json.dumps(asked)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**write)) as writer:
        for _ in range(batches):
            writer.write_batch(pa.record_batch([rows], schema))
    body: bytes = sink.getvalue().to_pybytes()
    return body


def whole(route: str) -> list[bytes]:
    """Return streams that the route answers, and some of types that it refuses."""
    ids = pa.array(range(21), pa.int64())
    kinds = [ids, ids.cast(pa.int32()), ids.cast(pa.string()), ids.cast(pa.large_string())]
    columns: list[Any] = [*kinds, pa.nulls(3), ids.cast(pa.string()).dictionary_encode()]
    name, asked = "id", dict[str, Any](missing="zeros")
    if route != "embeddings":
        flat = pa.array([float(n % 7) for n in range(13 * DIMS[2])], pa.float32())
        fixed = pa.FixedSizeListArray.from_arrays(flat, DIMS[2])
        lists = [pa.list_(kind) for kind in (pa.float32(), pa.float64(), pa.float16())]
        columns = [fixed, *(fixed.cast(kind) for kind in (*lists, pa.large_list(pa.float32())))]
        columns.append(pa.array([[[1.0]]] * 3, pa.list_(pa.list_(pa.float32()))))
        name, asked = "vector", {"k": 3}
        if route == "transform":
            asked = {"source": 2, "target": 0, "fingerprint": None}
    streams = [stream(name, c, asked, n % 3 + 1) for n, c in enumerate(columns)]
    return [*streams, stream(name, columns[0], asked, 2, compression="zstd")]


def mutated(draw: random.Random, known: list[bytes]) -> bytes:
    """Return a stream with some of its messages, and then some of its bytes, out of place."""
    parts = messages(draw.choice(known))
    for _ in range(draw.choice((0, 0, 1, 2))):
        change, at = draw.randrange(4), draw.randrange(len(parts))
        if change == 0 and len(parts) > 1:
            del parts[at]
        elif change == 1:
            parts.insert(at, draw.choice(messages(draw.choice(known))))
        elif change == 2:
            parts[at] = draw.choice(messages(draw.choice(known)))
        else:
            draw.shuffle(parts)
    body = bytearray(b"".join(parts) + struct.pack("<Ii", 0xFFFFFFFF, 0) * draw.randrange(2))
    for _ in range(draw.choice((0, 1, 1, 2, 4, 8))):
        if len(body) < 16:
            break
        change, at = draw.randrange(5), draw.randrange(len(body) - 8)
        if change == 0:
            body[at] ^= 1 << draw.randrange(8)
        elif change == 1:
            struct.pack_into("<q", body, at & ~7, draw.choice(EXTREMES))
        elif change == 2:
            struct.pack_into("<I", body, at & ~3, draw.choice(EXTREMES) & 0xFFFFFFFF)
        elif change == 3:
            del body[at : at + draw.choice((1, 4, 8, 64))]
        else:
            del body[at:]
            body += bytes(16)
    return bytes(body)


def call_of(state: ServedState, body: bytes) -> Call:
    return Call(state, Access(""), SETTINGS, body, True, True, None)


def main(folder: Path, count: int, seed: int) -> None:
    draw = random.Random(seed)
    states = [service_of(folder / name).enter() for name in ("numbers", "texts")]
    known = {route: whole(route) for route in ROUTES}
    every = [body for bodies in known.values() for body in bodies]
    statuses: Counter[str] = Counter()
    with (folder / "last").open("wb", buffering=0) as last:
        for number in range(count):
            route = list(ROUTES)[number % len(ROUTES)]
            body = mutated(draw, known[route] if number % 5 else every)
            last.seek(0)
            last.truncate()
            last.write(route.encode() + b"\n" + body)
            call = call_of(states[number // 3 % 2], body)
            status = 200
            try:
                ROUTES[route](call)
            except Exception as error:
                status = error_response(error).status
            statuses[f"{route} {status}"] += 1
    sys.stdout.write(json.dumps(statuses))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
