"""Import embeddings of another model as version 0 of a lineage."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch

from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.lineage.unseen_objects import canary_rows
from evergram.releasing.files.pair_moments import id_hashes
from evergram.releasing.files.past_file import facts_of, first_version
from evergram.training.progress import Progress
from evergram.vector_files.open_embeddings import EmbeddingFile
from evergram.vector_files.pairing import refuse_repeats

QUIET = Progress(quiet=True)


def import_embeddings(
    file: EmbeddingFile, lineage: Lineage, *, progress: Progress = QUIET
) -> dict[str, Any]:
    """Publish `file` as version 0 of a lineage without versions. `align` adds the next.

    Returns: JSON of what was published.
    Raises: LineageError: the lineage has versions already. DataError: an id is there twice, or a
        vector cannot be used.
    """
    if lineage.versions:
        raise LineageError(
            f"{lineage} has versions already; 'evergram vectors align' adds the next, with its "
            "transform."
        )
    ids = file.ids()
    refuse_repeats(file, ids)
    kept = canary_rows(ids, id_hashes(ids)).sort().values
    vectors = torch.empty(len(kept), file.dim)
    start = done = 0
    with progress.task("canaries", file.rows) as bar:
        for _, block in file.blocks():
            stop = done + int(torch.searchsorted(kept[done:], start + len(block)))
            vectors[done:stop] = block[kept[done:stop] - start].float()
            start, done = start + len(block), stop
            bar.advance(len(block), len(block))
    if start != len(ids):
        raise DataError(f"{file.path} changed while it was read; import it again.")
    canaries = ids.take(pa.array(kept.numpy())).cast(pa.string()), vectors
    number = lineage.publish(
        first_version(file, canaries, {"import": {"file": str(file.path), **facts_of(file)}})
    )
    return {
        "version": number,
        "rows": file.rows,
        "dim": file.dim,
        "fingerprint": lineage.manifest(number).fingerprint,
    }
