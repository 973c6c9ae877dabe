"""The checkpoints of a run whose tables are divided: one file of all else, and a folder of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from evergram.encoders.encoder import Encoder
from evergram.errors import FormatError, IntegrityError
from evergram.training.checkpoints.checkpoint_folder import CheckpointFolder
from evergram.training.checkpoints.state_file import StateReader, StateWriter, TrainingState
from evergram.training.sharding.shard_files import (
    digests,
    remove_folder_of_rows,
    remove_lone_shards,
    shard_folder,
)
from evergram.training.sharding.sharded_factorization import ShardedFactorization

FACT = "shards"


def keep_shards(folder: CheckpointFolder, encoder: Encoder) -> None:
    """Let a run's checkpoints have the rows of divided tables, if its encoder has such tables."""
    if isinstance(encoder, ShardedFactorization):
        folder.writer, folder.reader = ShardedStateWriter(encoder), ShardedStateReader(encoder)


class ShardedStateWriter(StateWriter):
    """Writes a run's state: rows of tables by all processes, then all else by the first.

    Without the file that comes last, the rows are no part of a checkpoint.
    """

    def __init__(self, encoder: ShardedFactorization) -> None:
        self.encoder = encoder

    def write(self, path: Path, identity: Mapping[str, str], state: TrainingState) -> None:
        folder = shard_folder(path)
        # What a killed process left here, or a checkpoint that this one replaces.
        self.remove(path)
        names = self.encoder.save(folder)
        record = {"names": names, "files": digests(folder)}
        super().write(path, identity, replace(state, facts={**state.facts, FACT: record}))
        remove_lone_shards(path.parent)

    def remove(self, path: Path) -> None:
        super().remove(path)
        remove_folder_of_rows(path)


class ShardedStateReader(StateReader):
    """Reads what `ShardedStateWriter` wrote; the rows go into the encoder."""

    def __init__(self, encoder: ShardedFactorization) -> None:
        self.encoder = encoder

    def read(self, path: Path) -> TrainingState:
        """Return a state, after comparing it and the rows with their SHA-256.

        Raises: IntegrityError: a file is damaged or missing. FormatError: another release wrote it.
        """
        state = super().read(path)
        folder, record = shard_folder(path), state.facts.get(FACT)
        if record is None:
            raise FormatError(f"{path.name} has no rows of divided tables.")
        if digests(folder) != record["files"]:
            raise IntegrityError(
                f"{folder.name} is damaged: its files are not those that {path.name} states."
            )
        self.encoder.load(folder, record["names"])
        return state
