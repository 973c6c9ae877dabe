"""Ids and vectors in files: Parquet, Arrow, `.npy` and safetensors, block by block.

`base`: `EmbeddingFile`, which every format satisfies, and the version that a file names.
`open_embeddings` reads, `writers` writes one file, `shards` a folder of them; `pairing` reads two
files of vectors of the same objects side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.vector_files.base import EmbeddingFile
    from evergram.vector_files.open_embeddings import open_embeddings
    from evergram.vector_files.pairing import Pairing
    from evergram.vector_files.shards import Shards, write_shards
    from evergram.vector_files.writers import read_embeddings, write_embeddings, write_vectors

__all__ = [
    "EmbeddingFile",
    "Pairing",
    "Shards",
    "open_embeddings",
    "read_embeddings",
    "write_embeddings",
    "write_shards",
    "write_vectors",
]

export_lazily(
    __name__,
    {
        "base": "EmbeddingFile",
        "open_embeddings": "open_embeddings",
        "pairing": "Pairing",
        "shards": "Shards write_shards",
        "writers": "read_embeddings write_embeddings write_vectors",
    },
)
