"""Rewrite a file of one version's vectors as another version's, into a folder of shards."""

from __future__ import annotations

from collections.abc import Iterator

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.past_file import refuse_unnamed_rows
from evergram.releasing.files.transform_file import QUIET, reading_of, versions_of
from evergram.training.progress import Progress
from evergram.vector_files.open_embeddings import Block, EmbeddingFile
from evergram.vector_files.prefetch import ahead
from evergram.vector_files.provenance import provenance_of
from evergram.vector_files.shards import Shards, WrittenShards, between, write_shards


def transform_shards(
    file: EmbeddingFile,
    lineage: Lineage,
    versions: tuple[int | str | None, int | str],
    shards: Shards,
    *,
    progress: Progress = QUIET,
    overwrite: bool = False,
) -> WrittenShards:
    """Write `file`, vectors of one version, as another's, into Parquet files of a folder.

    Shards that are there already, as they were written, are kept, so a run that was killed goes on,
    and several processes may each write some. A run is refused if the file's length or its time of
    change differs from when the folder was begun. Memory does not grow with the file.

    Args:
        versions: the version of `file` (None for the newest), and the version to write.
        overwrite: whether to write all shards anew, and remove those of other settings.
    Raises: as `transform_file` and `vector_files.shards.write_shards`.
    """
    source, target = versions_of(file, lineage, *versions)
    refuse_unnamed_rows(file, lineage, source)
    apply = reading_of(lineage, source, target)
    fingerprints = provenance_of(*(lineage.manifest(n).fingerprint for n in (target, source)))
    try:
        status = file.path.stat()
    except OSError as error:
        raise DataError(f"{file.path} cannot be read: {error.strerror or error}.") from error
    settings: dict[str, str | int] = {
        "bytes": status.st_size,
        "changed_ns": status.st_mtime_ns,
        **fingerprints,
    }
    own = sum(len(shards.rows(n, file.rows)) for n in shards.numbers)
    with progress.task(f"as version {target}", own) as bar:

        def rewritten(start: int, stop: int) -> Iterator[Block]:
            blocks = ahead(between(file.blocks(), start, stop))
            for ids, vectors in file.read_as(apply, target, blocks, start):
                yield ids, vectors
                bar.advance(len(ids), len(ids))

        return write_shards(
            shards, file.rows, rewritten, fingerprints, settings, overwrite=overwrite
        )
