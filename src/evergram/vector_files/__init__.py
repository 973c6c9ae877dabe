"""Ids and vectors in files: Parquet, Arrow, `.npy` and safetensors, block by block.

Read in this order:

1. `base`: `EmbeddingFile`, which every format satisfies; `open_embeddings` chooses by the suffix.
2. `column_files` (Parquet, Arrow) and `array_files` (`.npy`, safetensors) read; `writers` writes
   one file, `shards` a folder of them.
3. `pairing`: two files of vectors of the same objects, side by side.
4. `parquet`: the layout of the files of a lineage. `provenance`: the version that a file says its
   vectors are of. `prefetch`: read the next block while the current one is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.vector_files.base import EmbeddingFile
    from evergram.vector_files.open_embeddings import open_embeddings
    from evergram.vector_files.pairing import Pairing
    from evergram.vector_files.parquet import read_embeddings, write_embeddings
    from evergram.vector_files.shards import Shards, write_shards
    from evergram.vector_files.writers import write_vectors

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
        "parquet": "read_embeddings write_embeddings",
        "shards": "Shards write_shards",
        "writers": "write_vectors",
    },
)
