"""Checkpoints of divided tables: safetensors files by torch.distributed.checkpoint.

Each process writes its rows into the checkpoint's folder, by `HuggingFaceStorageWriter`; the plain
writer of torch.distributed.checkpoint keeps a pickled `.metadata`, which nothing here reads or
writes. Any number of processes reads the rows that each then holds.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from evergram.collectives import Collectives
from evergram.errors import TrainingError

FOLDER = ".shards"
CHUNK = 1 << 22


def save_shards(tensors: Mapping[str, Tensor], folder: Path, together: Collectives) -> None:
    """Write tensors, divided or plain, to a folder; all processes call it.

    Raises: TrainingError: the folder cannot be written.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with _named(folder, "written", "make room there"):
        folder.mkdir(parents=True, exist_ok=True)
        # A file each: the writer copies what goes into one file before it writes it.
        files = {name: number for number, name in enumerate(tensors, start=1)}
        writer = HuggingFaceStorageWriter(str(folder), files, save_distributed=True)
        save(dict(tensors), storage_writer=writer, no_dist=together.size == 1)


def load_shards(tensors: Mapping[str, Tensor], folder: Path, together: Collectives) -> None:
    """Read tensors from a folder into those that are handed in; all processes call it.

    Raises: TrainingError: they are not in it.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with _named(folder, "read", "remove it with the checkpoint beside it"):
        reader = HuggingFaceStorageReader(str(folder))
        load(dict(tensors), storage_reader=reader, no_dist=together.size == 1)


@contextmanager
def _named(folder: Path, verb: str, remedy: str) -> Iterator[None]:
    """Raises: TrainingError: torch.distributed.checkpoint could not do its part."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            # One process needs no process group.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            yield
    except (CheckpointException, RuntimeError, OSError) as error:
        failures = error.failures if isinstance(error, CheckpointException) else {}
        cause = next((exception for exception, _ in failures.values()), error)
        reason = " ".join(str(cause).split()).rstrip(".")[:300]
        raise TrainingError(
            f"The rows of divided tables cannot be {verb} in {folder} ({reason}); {remedy}. All "
            "processes must see the same folder, so that several machines need a shared disk."
        ) from error


def shard_folder(path: Path) -> Path:
    """Return the folder beside a checkpoint's file that holds the rows of divided tables."""
    return path.with_name(path.name + FOLDER)


def remove_folder_of_rows(path: Path) -> None:
    """Remove the rows beside a checkpoint's file, if there are any."""
    shutil.rmtree(shard_folder(path), ignore_errors=True)


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder, by name."""
    sums = {}
    for path in sorted(folder.glob("*")):
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while content := file.read(CHUNK):
                digest.update(content)
        sums[path.name] = digest.hexdigest()
    return sums


def remove_lone_shards(folder: Path) -> None:
    """Remove rows of checkpoints that are not there any more."""
    for shards in folder.glob(f"*{FOLDER}"):
        if not shards.with_name(shards.name.removesuffix(FOLDER)).exists():
            shutil.rmtree(shards, ignore_errors=True)
