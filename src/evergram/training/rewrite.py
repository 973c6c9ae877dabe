"""A file of one version's vectors, rewritten as another version's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from evergram.errors import ShapeError
from evergram.lineage.lineage import Lineage
from evergram.stores.embedding_files import Block, EmbeddingFile
from evergram.stores.embedding_writers import check_writable, write_vectors
from evergram.stores.reading_ahead import ahead
from evergram.training.progress import Progress

QUIET = Progress(quiet=True)


def transform_file(
    file: EmbeddingFile,
    lineage: Lineage,
    target: int,
    out: Path,
    *,
    source: int | None = None,
    progress: Progress = QUIET,
) -> int:
    """Write `file`, vectors of version `source` (default: the newest), as version `target`.

    Reading, multiplying and writing go on at once, a few blocks at a time: memory does not grow
    with the file. Ids and their order stay.

    Returns: rows written.
    Raises: ShapeError: the file's dim is not that version's. UnknownVersionError. DataError: a
        vector cannot be used, or `out` cannot be written.
    """
    version = lineage.newest if source is None else source
    chain = lineage.chain
    if chain.dim(version) != file.dim:
        raise ShapeError(
            f"{file.path} has dim {file.dim}; version {version} of {lineage} has dim "
            f"{chain.dim(version)}. Name the version that these vectors are of with --from."
        )
    chain.is_affine(version, target)  # refuses a version that there is not
    check_writable(out)
    with progress.task(f"as version {target}", file.rows) as bar:

        def rewritten() -> Iterator[Block]:
            for ids, vectors in ahead(file.blocks()):
                yield ids, chain.apply(vectors, version, target)

        def counted() -> Iterator[Block]:
            for ids, vectors in ahead(rewritten()):
                yield ids, vectors
                bar.advance(len(ids), len(ids))

        return write_vectors(out, counted())
