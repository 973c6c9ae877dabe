"""What the processes beside the first one do of an alignment of two files."""

from __future__ import annotations

import torch

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import CPU, DEFAULT, QUIET
from evergram.releasing.files.align_settings import AlignSettings
from evergram.releasing.files.moments_pass import read_pairs
from evergram.releasing.files.pair_split import id_hashes, pair_groups
from evergram.releasing.files.past_file import past_file
from evergram.training.distributed.process_group import join_processes
from evergram.vector_files.open_embeddings import EmbeddingFile
from evergram.vector_files.pairing import Pairing


def take_part_in_alignment(
    old: EmbeddingFile | int,
    new: EmbeddingFile,
    lineage: Lineage | None = None,
    settings: AlignSettings = DEFAULT,
) -> None:
    """Do this process's share of an `align` that the first process calls, which publishes.

    Args:
        lineage: needed only where `old` is the number of a version.
    Raises: DataError, LineageError: as `align`. TrainingError: another process has ended.
    """
    if isinstance(old, int):
        if lineage is None:
            raise DataError(
                f"The old vectors are those of version {old}, and no lineage is given; give it too."
            )
        old = past_file(old, lineage)
    pairing = Pairing(old, new)
    groups = pair_groups(id_hashes(pairing.ids), settings.held_out)
    nothing, dims = torch.zeros(0, dtype=torch.int64), (old.dim, new.dim)
    read = read_pairs(pairing, dims, groups, nothing, QUIET, join_processes(CPU))
    if (apart := read.apart(groups)) is not None:
        read_pairs(pairing, dims, apart, nothing, QUIET, join_processes(CPU))
