"""Read and write files of ids and vectors: Parquet, Arrow and `.npy`, block by block.

`open_embeddings` opens a file as an `EmbeddingFile`, `write_vectors` writes one, and `Pairing`
reads two files with vectors of the same objects in parallel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.vector_files.open_embeddings import open_embeddings as open_embeddings
    from evergram.vector_files.open_embeddings import write_vectors as write_vectors

export_lazily(__name__)
