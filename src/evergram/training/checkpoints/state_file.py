"""One file that holds a running training's whole state, and shows whether it is damaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from evergram.atomic_files import make_folder, replacing_path
from evergram.errors import FormatError, IntegrityError, TrainingError

FORMAT = "evergram-checkpoint-1"


@dataclass(frozen=True)
class TrainingState:
    """Everything that a training's next step depends on.

    Args:
        tensors: parameters, optimisers, Gramians, generators, by name; not copied.
        facts: counters, records and the like, as JSON.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


class StateWriter:
    """Writes a state to a path: one safetensors file, whole or not at all.

    The state of several processes, each with a part of the parameters, needs another writer and
    another reader with these methods; all else about checkpoints stays as it is.
    """

    def write(self, path: Path, identity: Mapping[str, str], state: TrainingState) -> None:
        """Replace the file of a state.

        Args:
            identity: the run that it is of.
        Raises: TrainingError: the file cannot be written; nothing has changed.
        """
        tensors = _plain(state.tensors)
        metadata = {
            "format": FORMAT,
            "identity": json.dumps(dict(identity)),
            "facts": json.dumps(dict(state.facts)),
        }
        metadata["sha256"] = _digest(metadata, tensors)
        try:
            make_folder(path.parent)
            # Tensors and facts in one file: one rename replaces both.
            with replacing_path(path) as part:
                save_file(tensors, part, metadata=metadata)
        except (OSError, SafetensorError) as error:
            why = getattr(error, "strerror", None) or str(error).rstrip(".")
            raise TrainingError(
                f"The state of the training, {state.bytes:,} bytes, cannot be kept in "
                f"{path.parent}: {why}; make room there, or choose another --lineage."
            ) from error

    def remove(self, path: Path) -> None:
        """Remove a state, if it is there."""
        path.unlink(missing_ok=True)


class StateReader:
    """Reads what `StateWriter` wrote."""

    def identity(self, path: Path) -> dict[str, str]:
        """Return the run that a state is of; the tensors are not read.

        Raises: IntegrityError: the file is damaged. FormatError: another release wrote it.
        """
        metadata = self._opened(path)[0]
        try:
            identity: dict[str, str] = dict(json.loads(metadata["identity"]))
        except (KeyError, TypeError, ValueError) as error:
            raise IntegrityError(f"{path.name} is damaged: it names no run.") from error
        return identity

    def read(self, path: Path) -> TrainingState:
        """Return a state, after comparing it with its SHA-256.

        Raises: as `identity`.
        """
        metadata, tensors = self._opened(path, whole=True)
        written = metadata.pop("sha256", "")
        if _digest(metadata, tensors) != written:
            raise IntegrityError(f"{path.name} is damaged: its SHA-256 is not the one it states.")
        return TrainingState(tensors, json.loads(metadata["facts"]))

    def _opened(self, path: Path, whole: bool = False) -> tuple[dict[str, str], dict[str, Tensor]]:
        tensors: dict[str, Tensor] = {}
        try:
            with safe_open(path, framework="pt") as file:
                metadata = dict(file.metadata() or {})
                if whole:
                    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise IntegrityError(
                f"{path.name} is damaged: it is cut, or no file of safetensors."
            ) from error
        if metadata.get("format") != FORMAT:
            raise FormatError(f"{path.name} was written by another release of Evergram.")
        return metadata, tensors


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as a file holds them: on the CPU, dense, none a view of another."""
    plain: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        dense = tensor.detach().cpu().contiguous()
        storage = dense.untyped_storage().data_ptr()
        # Modules that share parameters have them under several names.
        plain[name] = dense.clone() if storage in storages else dense
        storages.add(storage)
    return plain


def _digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a state: metadata, and every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
