"""A lineage of two encoders of words with prompts, its service, and texts read as version 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.support.running_service import server
from tests.support.text_encoders import ADDRESSES, sentences, word_vectors

from evergram.lineage.lineage import Lineage
from evergram.migration.encoded_files import Texts, encode_file
from evergram.releasing.align import AlignSettings, align
from evergram.serving.app import create_app
from evergram.serving.service import Service
from evergram.serving.texts import ServedTexts
from evergram.texts.addresses import open_text_encoder
from evergram.texts.text_encoder import Prompts, Vectors
from evergram.vector_files.open_embeddings import open_embeddings

TEXTS = ["word1 word2 word3", "word4 word9"]
PROMPTS = Prompts("word50 ", "word51 word52 ")
CUTS = (4, 8)


def pinned_lineage(folder: Path) -> Lineage:
    """Publish sentences, encoded by two encoders, as versions 0 and 1 of "line"."""
    lineage = Lineage.create(folder / "line", "line")
    rows = sentences()
    texts = Texts(pa.array([f"text-{i}" for i in range(len(rows))]), rows)
    files = []
    for number, address in enumerate(ADDRESSES[:2]):
        path = folder / f"{number}.parquet"
        encode_file(texts, open_text_encoder(address, PROMPTS), path, matryoshka=CUTS)
        files.append(open_embeddings(path))
    align(files[0], files[1], lineage, AlignSettings())
    return lineage


def as_version_0(lineage: Lineage, texts: list[str], prompt: str) -> Vectors:
    """Return texts by version 1's encoder, read as version 0, computed beside the package."""
    newest = word_vectors([prompt + text for text in texts], 1, 12).astype(np.float64)
    read: Vectors = (newest @ lineage.chain.matrix(1, 0).numpy().T).astype(np.float32)
    return read


@contextmanager
def pinned_service(lineage: Lineage) -> Iterator[str]:
    """Serve a lineage, and yield the address."""
    with server(create_app(Service(lineage.path, texts=ServedTexts(ADDRESSES)))) as url:
        yield url
