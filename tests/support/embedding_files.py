"""Small files of ids and vectors."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from evergram.vector_files.open_embeddings import EmbeddingFile, open_embeddings, write_vectors


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def id_names(rows: int) -> pa.Array:
    return pa.array([f"id{i}" for i in range(rows)])


def file_of(path: Path, vectors: Tensor, ids: pa.Array | None = None) -> EmbeddingFile:
    """Write vectors to a file, with the ids id0, id1, … if none are chosen. Returns: it, open."""
    write_vectors(path, [(id_names(len(vectors)) if ids is None else ids, vectors)])
    return open_embeddings(path)


def file_without_ids(path: Path, vectors: Tensor) -> EmbeddingFile:
    """Write vectors alone to an .npy file. Returns: it, open."""
    ids = pa.array(range(len(vectors)))
    write_vectors(path, [(ids, vectors)], named=False)
    return open_embeddings(path)
