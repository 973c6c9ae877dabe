"""Tiny encoders of text that need no package, and a server of one in the form of OpenAI's."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import pyarrow as pa

from evergram.lineage.lineage import Lineage
from evergram.migration.encoded_files import Texts, encode_file
from evergram.releasing.align import AlignSettings, align
from evergram.texts.addresses import open_text_encoder
from evergram.texts.text_encoder import Prompts, Vectors
from evergram.vector_files.open_embeddings import EmbeddingFile, open_embeddings

WORDS = [f"word{i}" for i in range(60)]
# What the functions below got, for tests of batching and of caches.
CALLS: list[list[str]] = []


def word_vectors(texts: Sequence[str], seed: int, dim: int) -> Vectors:
    """Return the sums [n, D] of fixed random vectors of the words of each text."""
    return np.stack([sum(_word(w, seed, dim) for w in text.split()) for text in texts]).astype(
        np.float32
    )


@cache
def _word(word: str, seed: int, dim: int) -> Any:
    digest = hashlib.sha256(word.encode()).digest()
    # What a word means is shared, so that one encoder says something of another.
    meaning = np.random.default_rng(int.from_bytes(digest[:8], "little")).standard_normal(10)
    return np.random.default_rng(seed).standard_normal((dim, 10)) @ meaning


def first(texts: list[str]) -> Vectors:
    CALLS.append(list(texts))
    return word_vectors(texts, 0, 10)


def second(texts: list[str]) -> Vectors:
    CALLS.append(list(texts))
    return word_vectors(texts, 1, 12)


def third(texts: list[str]) -> Vectors:
    CALLS.append(list(texts))
    return word_vectors(texts, 2, 11)


def shifted(texts: list[str]) -> Vectors:
    """As many dims as `first`, and other vectors."""
    return word_vectors(texts, 3, 10)


def failing(texts: list[str]) -> Vectors:
    if any("poison" in text for text in texts):
        raise RuntimeError("out of memory")
    return word_vectors(texts, 0, 10)


def misshapen(texts: list[str]) -> list[list[float]]:
    return [[1.0, 2.0]]


def not_finite(texts: list[str]) -> list[list[float]]:
    return [[float("nan") if "bad" in text else 1.0] for text in texts]


NO_FUNCTION = 3
HERE = "python:tests.support.text_encoders"
ADDRESSES = [f"{HERE}:{name}" for name in ("first", "second", "third")]


def sentences(count: int = 400) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(count)]


def encoded(
    folder: Path, address: str, prompts: Prompts | None = None, texts: list[str] | None = None
) -> EmbeddingFile:
    """Encode sentences to a file, and return it."""
    rows = sentences() if texts is None else texts
    ids = pa.array([f"text-{i}" for i in range(len(rows))])
    out = folder / f"{hashlib.sha256(address.encode()).hexdigest()[:8]}.parquet"
    encode_file(Texts(ids, rows), open_text_encoder(address, prompts), out, overwrite=True)
    return open_embeddings(out)


def text_lineage(folder: Path, addresses: Sequence[str] = tuple(ADDRESSES[:2])) -> Lineage:
    """Return a lineage "line" in a folder: the sentences, encoded at each address, as its versions.

    A copy, with the files that were encoded: making them takes seconds.
    """
    shutil.copytree(_published(tuple(addresses)).name, folder, dirs_exist_ok=True)
    return Lineage.open(folder / "line")


@cache
def _published(addresses: tuple[str, ...]) -> TemporaryDirectory[str]:
    """Publish once in a process, into a folder that is removed when the process ends."""
    made = TemporaryDirectory(prefix="evergram-texts-")
    folder = Path(made.name)
    lineage = Lineage.create(folder / "line", "line")
    old: EmbeddingFile | int = encoded(folder, addresses[0])
    for number, address in enumerate(addresses[1:]):
        align(old, encoded(folder, address), lineage, AlignSettings())
        old = number + 1
    return made


def endpoint(
    encode: Callable[[list[str]], Vectors], seen: list[httpx.Request] | None = None
) -> httpx.MockTransport:
    """Return a transport that answers as OpenAI's `/embeddings`, its rows in the wrong order."""

    def answer(request: httpx.Request) -> httpx.Response:
        import json

        if seen is not None:
            seen.append(request)
        body = json.loads(request.content)
        rows = [
            {"object": "embedding", "index": i, "embedding": row.tolist()}
            for i, row in enumerate(encode(body["input"]))
        ]
        return httpx.Response(200, json={"object": "list", "data": rows[::-1]})

    return httpx.MockTransport(answer)
