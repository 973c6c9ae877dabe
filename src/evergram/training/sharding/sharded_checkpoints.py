"""Checkpoints of divided tables: each process writes its rows to a folder beside the state's file.

Any number of processes reads the rows that each then holds.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from evergram.data.prepared.column_file import sha256_of
from evergram.encoders.encoder import Encoder
from evergram.errors import FormatError, IntegrityError
from evergram.training.checkpoints.checkpoint_folder import (
    CheckpointFolder,
    StateFile,
    TrainingState,
)
from evergram.training.sharding.sharded_factorization import ShardedFactorization

FOLDER, FACT = ".shards", "shards"


def keep_shards(folder: CheckpointFolder, encoder: Encoder) -> None:
    """Let a run's checkpoints have the rows of divided tables, if its encoder has such tables."""
    if isinstance(encoder, ShardedFactorization):
        folder.file = ShardedStateFile(encoder)


class ShardedStateFile(StateFile):
    """A run's state: rows of tables by all processes, then everything else by the first.

    Without the file that comes last, the rows are no part of a checkpoint.
    """

    def __init__(self, encoder: ShardedFactorization) -> None:
        self.encoder = encoder

    def write(self, path: Path, identity: Mapping[str, str], state: TrainingState) -> None:
        # What a killed process left here, or a checkpoint that this one replaces.
        self.remove(path)
        names = self.encoder.save(_folder(path))
        record = {"names": names, "files": _digests(path)}
        super().write(path, identity, replace(state, facts={**state.facts, FACT: record}))
        for shards in path.parent.glob(f"*{FOLDER}"):
            if not shards.with_name(shards.name.removesuffix(FOLDER)).exists():
                shutil.rmtree(shards, ignore_errors=True)

    def remove(self, path: Path) -> None:
        super().remove(path)
        shutil.rmtree(_folder(path), ignore_errors=True)

    def read(self, path: Path) -> TrainingState:
        """Return a state, after comparing it and the rows with their SHA-256.

        Raises: IntegrityError: a file is damaged or missing. FormatError: another release wrote it.
        """
        state = super().read(path)
        record = state.facts.get(FACT)
        if record is None:
            raise FormatError(f"{path.name} has no rows of divided tables.")
        if _digests(path) != record["files"]:
            raise IntegrityError(
                f"{_folder(path).name} is damaged: its files are not those that {path.name} states."
            )
        self.encoder.load(_folder(path), record["names"])
        return state


def _folder(path: Path) -> Path:
    return path.with_name(path.name + FOLDER)


def _digests(path: Path) -> dict[str, str]:
    return {file.name: sha256_of(file) for file in sorted(_folder(path).glob("*"))}
