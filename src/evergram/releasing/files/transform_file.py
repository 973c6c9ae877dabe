"""Rewrite a file of one version's vectors as another version's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from evergram.errors import ShapeError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.past_file import refuse_unnamed_rows
from evergram.training.progress import Progress
from evergram.vector_files.open_embeddings import Block, EmbeddingFile
from evergram.vector_files.prefetch import ahead
from evergram.vector_files.provenance import provenance_of
from evergram.vector_files.writers import check_writable, write_vectors

QUIET = Progress(quiet=True)


def transform_file(
    file: EmbeddingFile,
    lineage: Lineage,
    target: int | str,
    out: Path,
    *,
    source: int | str | None = None,
    progress: Progress = QUIET,
    overwrite: bool = False,
) -> int:
    """Write `file`, vectors of version `source` (default: the newest), as version `target`.

    Reading, multiplying and writing go on at once, a few blocks at a time: memory does not grow
    with the file. Ids and their order stay.

    Args:
        out: its suffix chooses the format.
        overwrite: whether to write over a file that is there.
    Returns: rows written. The file records the fingerprints of `target` and of `source`.
    Raises: ShapeError: the file's dim is not that version's. LineageError: the file has the
        fingerprint of another version. UnknownVersionError. DataError: a vector cannot be used;
        `out` is there or cannot be written; or the file has no ids, and `out` would present the
        numbers of its rows as the version's ids.
    """
    version = lineage.newest if source is None else lineage.resolve(source)
    wanted = lineage.resolve(target)
    chain = lineage.chain
    lineage.check_fingerprint(file.fingerprint, version, str(file.path))
    if chain.dim(version) != file.dim:
        raise ShapeError(
            f"{file.path} has dim {file.dim}; version {version} of {lineage} has dim "
            f"{chain.dim(version)}. Name the version that these vectors are of with --from."
        )
    named = out.suffix.lower() != ".npy" or file.has_ids
    if named:
        refuse_unnamed_rows(file, lineage, version)
    chain.is_affine(version, wanted)  # refuses a version that there is not
    check_writable(out, overwrite=overwrite)
    with progress.task(f"as version {wanted}", file.rows) as bar:

        def rewritten() -> Iterator[Block]:
            for ids, vectors in ahead(file.blocks()):
                yield ids, chain.apply(vectors, version, wanted)

        def counted() -> Iterator[Block]:
            for ids, vectors in ahead(rewritten()):
                yield ids, vectors
                bar.advance(len(ids), len(ids))

        fingerprints = (lineage.manifest(n).fingerprint for n in (wanted, version))
        return write_vectors(
            out, counted(), provenance_of(*fingerprints), overwrite=overwrite, named=named
        )
