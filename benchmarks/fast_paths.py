"""What each fast path around a library gains, beside the library's own way.

`python -m benchmarks serving-fast-paths`. Requests are sent to the application in this process, so
that neither a socket nor a client is part of the time.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from benchmarks.serving import lineage_of
from evergram.errors import DataError
from evergram.serving.app import create_app
from evergram.serving.http.arrow_stream import read_stream
from evergram.serving.http.errors import RefusedError
from evergram.serving.http.json_body import parse
from evergram.serving.http.request_handler import is_quick
from evergram.serving.http.request_schemas import EmbeddingsRequest, TransformRequest
from evergram.serving.http.request_values import vectors_of
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings

ROWS, IDS = 100_000, 100
ARROW = b"application/vnd.apache.arrow.stream"
SETTINGS = ServiceSettings()


@dataclass(frozen=True)
class FastPath:
    """A fast path and the library's way, on the same work.

    Args:
        name: of the fast path.
        around: the part of a library that it replaces.
        work: what was measured, with its unit.
        library, fast: the figure of each way; less is better.
    """

    name: str
    around: str
    work: str
    library: float
    fast: float


def fast_paths(rows: int = ROWS, requests: int = 2_000, mega: float = 16.0) -> list[FastPath]:
    """Measure every fast path of the service.

    Args:
        rows: stored objects.
        requests: requests of each way, in turns.
        mega: MB of a large body.
    """
    with tempfile.TemporaryDirectory() as folder:
        lineage_of(Path(folder) / "l", rows)
        service = Service(Path(folder) / "l")
        small = asyncio.run(_small_requests(service, rows, requests))
        service.close()
    return [*small, *_large_bodies(mega), _compressed(mega)]


def tiny_fast_paths() -> list[FastPath]:
    return fast_paths(300, 20, 0.2)


async def _small_requests(service: Service, rows: int, requests: int) -> list[FastPath]:
    app = create_app(service)
    draw = np.random.default_rng(0)

    async def ask() -> None:
        body = {"model": "bench@v0", "input": draw.integers(0, rows, IDS).tolist()}
        await _post(app, "/v1/embeddings", json.dumps(body).encode())

    may_be_inline = True

    def chosen(*request: Any) -> bool:
        return may_be_inline and is_quick(*request)

    async def ask_inline(allowed: bool) -> None:
        nonlocal may_be_inline
        may_be_inline = allowed
        await ask()

    with mock.patch("evergram.serving.http.request_handler.is_quick", chosen):
        inline = await _in_turns(
            {"fast": lambda: ask_inline(True), "library": lambda: ask_inline(False)}, requests
        )
    work = f"p50 ms, {IDS} ids as Arrow"
    return [FastPath("inline_answers", "a thread pool", work, inline["library"], inline["fast"])]


async def _in_turns(
    actions: Mapping[str, Callable[[], Awaitable[None]]], rounds: int
) -> dict[str, float]:
    """Return the median milliseconds of each action."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for i in range(rounds + rounds // 20 + 1):
        for name in sorted(actions, reverse=bool(i % 2)):
            started = time.perf_counter()
            await actions[name]()
            if i > rounds // 20:
                times[name].append(time.perf_counter() - started)
    return {name: median(seconds) * 1e3 for name, seconds in times.items()}


async def _post(app: Any, path: str, body: bytes) -> None:
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    headers = {b"host": b"127.0.0.1", b"content-type": b"application/json", b"accept": ARROW}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": list(headers.items()),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    assert messages[0]["status"] == 200, messages


def _large_bodies(mega: float) -> list[FastPath]:
    """Measure a body of far more elements than a request may have, and one that is answered."""
    size = int(mega * 1e6)
    hostile = b'{"input":[' + b",".join([b"[]"] * (size // 3)) + b"]}"
    rows = max(2, min(SETTINGS.max_batch, size // 5_000))
    vectors = np.random.default_rng(0).standard_normal((rows, 256)).round(6).tolist()
    honest = json.dumps({"vectors": vectors, "source": 0}).encode()

    def hostile_whole() -> None:
        with suppress(ValidationError):
            EmbeddingsRequest.model_validate_json(hostile)

    def hostile_cut() -> None:
        with suppress(RefusedError):
            parse(EmbeddingsRequest, hostile, SETTINGS)

    def honest_whole() -> None:
        request = TransformRequest.model_validate_json(honest)
        np.asarray(request.vectors, dtype=np.float32)

    def honest_cut() -> None:
        vectors_of(parse(TransformRequest, honest, SETTINGS), SETTINGS)

    name, around = "json_pieces", "pydantic's parser"
    millions = f"{len(hostile) / 1e6:.0f} MB"
    return [
        FastPath(
            name,
            around,
            f"ms, {millions} of empty lists are refused",
            _milliseconds(hostile_whole),
            _milliseconds(hostile_cut),
        ),
        FastPath(
            name,
            around,
            f"longest pause of other threads in ms, {len(honest) / 1e6:.0f} MB of vectors",
            _longest_pause(honest_whole),
            _longest_pause(honest_cut),
        ),
        FastPath(
            name,
            around,
            f"ms, {len(honest) / 1e6:.0f} MB of vectors",
            _milliseconds(honest_whole),
            _milliseconds(honest_cut),
        ),
    ]


def _compressed(mega: float) -> FastPath:
    """Measure how long a stream of zeros, compressed to almost nothing, takes to be refused."""
    zeros = pa.array(np.zeros(int(mega * 1e6), np.int64))
    batch = pa.record_batch([zeros], names=["id"])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    body = sink.getvalue().to_pybytes()

    def library() -> None:
        with pa.ipc.open_stream(pa.BufferReader(body)) as reader:
            reader.read_next_batch()

    def fast() -> None:
        with suppress(DataError):
            read_stream(body, "id", SETTINGS.max_batch)

    size = f"{len(body) / 1e3:.0f} kB that decompress to {zeros.nbytes / 1e6:.0f} MB"
    times = _milliseconds(library), _milliseconds(fast)
    return FastPath("compression_check", "pyarrow's reader", f"ms, {size} are refused", *times)


def _milliseconds(action: Callable[[], None], rounds: int = 3) -> float:
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return median(seconds) * 1e3


def _longest_pause(action: Callable[[], None], rounds: int = 3) -> float:
    """Return the longest milliseconds between two ticks of another thread; median of some runs."""
    pauses = []
    for _ in range(rounds):
        with _ticking() as ticks:
            action()
        pauses.append(float(np.diff(ticks).max()) * 1e3)
    return median(pauses)


@contextmanager
def _ticking() -> Any:
    """Let another thread note the time every half millisecond."""
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(0.01)
    try:
        yield ticks
    finally:
        time.sleep(0.01)
        stop.set()
        thread.join()


def table(paths: list[FastPath]) -> str:
    lines = [
        "| fast path | around | measured | the library | the fast path | gain |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{p.name}` | {p.around} | {p.work} | {p.library:.2f} | {p.fast:.2f} | "
        f"{p.library / p.fast:.2f} |"
        for p in paths
    ]
    return "\n".join(lines)
