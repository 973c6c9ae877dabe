"""Ids and vectors in files: Parquet, Arrow and `.npy`, block by block.

`open_embeddings`: `EmbeddingFile`, which every format satisfies, and the version that a file names;
`write_vectors` writes one; `Pairing` reads two files of vectors of the same objects side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.vector_files.open_embeddings import open_embeddings as open_embeddings
    from evergram.vector_files.open_embeddings import write_vectors as write_vectors

export_lazily(__name__)
