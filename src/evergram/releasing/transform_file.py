"""Rewrite a file of one version's vectors as another version's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from torch import Tensor

from evergram.errors import LineageError, ShapeError
from evergram.lineage.lineage import Lineage
from evergram.releasing.past_file import refuse_unnamed_rows
from evergram.training.progress import Progress
from evergram.vector_files.open_embeddings import Block, EmbeddingFile, provenance_of
from evergram.vector_files.pairing import ahead
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
    """Write `file`, vectors of version `source` (default: production), as version `target`.

    An earlier version's vectors are read as a later one's by the forward maps, approximately.

    Reading, multiplying and writing go on at once, a few blocks at a time: memory does not grow
    with the file. Ids and their order stay.

    Args:
        out: its suffix chooses the format.
        overwrite: whether to write over a file that is there.
    Returns: rows written. The file records the fingerprints of `target` and of `source`.
    Raises: ShapeError: the file's dim is not that version's. LineageError: the file has the
        fingerprint of another version, or no forward map leads to a later one.
        UnknownVersionError. DataError: a vector cannot be used, or is too large to be read as
        `target`; `out` is there or cannot be written; or the file has no ids, and `out` would
        present the numbers of its rows as the version's ids.
    """
    version, wanted = versions_of(file, lineage, source, target)
    apply = reading_of(lineage, version, wanted)
    named = out.suffix.lower() != ".npy" or file.has_ids
    if named:
        refuse_unnamed_rows(file, lineage, version)
    check_writable(out, overwrite=overwrite)
    with progress.task(f"as version {wanted}", file.rows) as bar:

        def rewritten() -> Iterator[Block]:
            return file.read_as(apply, wanted, ahead(file.blocks()), 0)

        def counted() -> Iterator[Block]:
            for ids, vectors in ahead(rewritten()):
                yield ids, vectors
                bar.advance(len(ids), len(ids))

        fingerprints = (lineage.manifest(n).fingerprint for n in (wanted, version))
        return write_vectors(
            out, counted(), provenance_of(*fingerprints), overwrite=overwrite, named=named
        )


def versions_of(
    file: EmbeddingFile, lineage: Lineage, source: int | str | None, target: int | str
) -> tuple[int, int]:
    """Return the numbers of the version of `file` and of the one to write it as."""
    version, wanted = lineage.resolve(source), lineage.resolve(target)
    lineage.check_fingerprint(file.fingerprint, version, str(file.path))
    if lineage.chain.dim(version) != file.dim:
        raise ShapeError(
            f"{file.path} has dim {file.dim}; version {version} of {lineage} has dim "
            f"{lineage.chain.dim(version)}. Name the version that these vectors are of with --from."
        )
    return version, wanted


def reading_of(lineage: Lineage, source: int, target: int) -> Callable[[Tensor], Tensor]:
    """Return what reads vectors [n, D_source] of one version as another's, [n, D_target]. Raises:
    LineageError: `target` is later, and no forward map was published between them."""
    if source >= target:
        return partial(lineage.chain.apply, source=source, target=target)
    parts = lineage.forward(source, target)
    if parts is None:
        raise LineageError(
            f"Version {source} cannot be read as the later version {target}: no forward map was "
            "published between them. Name an earlier version, or encode the objects anew."
        )
    weight, offset = parts
    return lambda vectors: (vectors.double() @ weight.T + offset).to(vectors.dtype)
