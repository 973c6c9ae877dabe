"""The checkpoints of one run: written in time, the last few kept, damaged ones passed over."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from evergram.atomic_files import make_folder, replacing_path
from evergram.errors import FormatError, IntegrityError, TrainingError
from evergram.training.callbacks import Callback
from evergram.training.checkpoints.run_identity import RunIdentity
from evergram.training.checkpoints.settings import AUTOMATIC, CheckpointSettings
from evergram.training.progress import Progress

if TYPE_CHECKING:
    from evergram.training.loop import Trainer

SUFFIX = ".safetensors"
log: logging.Logger = logging.getLogger(__name__)


class CheckpointFolder:
    """Keeps the newest checkpoints of a run, `TITLE.STEPS.safetensors`, in a folder.

    Args:
        folder: None saves nothing.
        title: the run's name in the folder, and in messages.
        identity: of the run; None only without a folder.
        settings: when checkpoints are written, how many are kept, and whether they are read.
    """

    def __init__(
        self,
        folder: Path | None,
        title: str,
        identity: RunIdentity | None = None,
        settings: CheckpointSettings = AUTOMATIC,
    ) -> None:
        self.folder = folder
        self.title = title
        self.identity = identity
        self.settings = settings
        self.file: StateFile = StateFile()
        self._saved, self._steps, self._cost = time.monotonic(), 0, 0.0
        # Checkpoints of this run, oldest first, as far as they are known to be whole.
        self._kept: list[Path] = []

    def due(self, steps: int) -> bool:
        """Return whether a checkpoint is due after so many steps of the run."""
        if self.folder is None:
            return False
        seconds = time.monotonic() - self._saved
        return self.settings.due(seconds, steps - self._steps, self._cost)

    def save(self, state: TrainingState, steps: int) -> None:
        """Write a checkpoint after `steps` steps, and remove those that are not kept.

        Raises: TrainingError: it cannot be written; an earlier one is still there.
        """
        if self.folder is None or self.identity is None:
            return
        started = time.monotonic()
        path = self.folder / f"{_stem(self.title)}.{steps:012d}{SUFFIX}"
        kept = [p for p in self._kept if p != path]
        # Make room first: on a full disk one good checkpoint is worth more than none.
        # With one to keep, or one there, it stays until the next one is whole.
        self._drop(kept[: max(0, len(kept) - max(1, self.settings.keep - 1))])
        self.file.write(path, self.identity.as_json(), state)
        self._kept = [*(p for p in kept if p.exists()), path][-self.settings.keep :]
        self._drop([p for p in self._paths() if p not in self._kept])
        self._saved, self._steps = time.monotonic(), steps
        self._cost = self._saved - started

    def load(self) -> TrainingState | None:
        """Return the newest whole state of this run, or None.

        With `resume` "never" every checkpoint of the title is removed. A warning names checkpoints
        that are damaged or of another run.
        """
        if self.folder is None or self.identity is None:
            return None
        paths = self._paths()
        if self.settings.resume == "never":
            if paths:
                newest = paths[-1].name
                log.warning(f"--resume never: drops {newest}, and trains {self.title} anew.")
            self._drop(paths)
            return None
        state, matching = None, []
        refused: list[str] = []
        for path in reversed(paths):
            reason = self._refusal(path)
            if not reason and state is None:
                try:
                    state = self.file.read(path)
                except IntegrityError as error:
                    reason = str(error)
            if not reason:
                matching.append(path)
            elif state is None:
                refused.append(reason)
        self._kept = matching[::-1]
        for sentence in refused[:-1] if state is None else refused:
            log.warning(f"{sentence} The checkpoint before it is tried.")
        if state is None and refused:
            log.warning(
                f"{refused[-1]} So {self.title} is trained from its start, and its first "
                "checkpoint replaces this one."
            )
        return state

    def _refusal(self, path: Path) -> str:
        """Return why a checkpoint is not one of this run, as a sentence; "" if it is one."""
        assert self.identity is not None
        try:
            difference = self.identity.difference(self.file.identity(path))
        except (IntegrityError, FormatError) as error:
            return str(error)
        return f"{path.name} is of {difference}." if difference else ""

    def _paths(self) -> list[Path]:
        """Return the files of the run's title, oldest first."""
        assert self.folder is not None
        name = re.compile(rf"{re.escape(_stem(self.title))}\.\d{{12}}{re.escape(SUFFIX)}")
        if not self.folder.is_dir():
            return []
        return sorted(
            (p for p in self.folder.iterdir() if name.fullmatch(p.name)),
            key=lambda path: path.name.removesuffix(SUFFIX),
        )

    def _drop(self, paths: list[Path]) -> None:
        for path in paths:
            self.file.remove(path)


def _stem(title: str) -> str:
    return title.replace(" ", "-")


FORMAT = "evergram-checkpoint-1"


@dataclass(frozen=True)
class TrainingState:
    """Everything that a training's next step depends on: `tensors` of parameters, optimisers,
    Gramians and generators by name, not copied; `facts`, such as counters and records, as JSON."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


class StateFile:
    """Reads and writes a state: one safetensors file, whole or not at all.

    The state of several processes, each with a part of the parameters, needs a subclass.
    """

    def write(self, path: Path, identity: Mapping[str, str], state: TrainingState) -> None:
        """Replace the file of a state of the run `identity`.

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

    def identity(self, path: Path) -> dict[str, str]:
        """Return the run that a state belongs to, without reading tensors.

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


class Resumption(Callback):
    """Restores a run from its newest checkpoint at the start, and saves it after steps and epochs.

    It must be the first of a run's callbacks, so that the others start from their restored state.
    """

    def __init__(self, checkpoints: CheckpointFolder, progress: Progress) -> None:
        self.checkpoints = checkpoints
        self.progress = progress

    def on_start(self, run: Trainer) -> None:
        state = self.checkpoints.load()
        if state is None:
            return
        run.load_state(state)
        inside = f", after {run.batches:,} of its {len(run.sampler):,} batches"
        self.progress.say(
            f"{self.checkpoints.title}: resumes in epoch {run.epoch}{inside}"
            if run.batches
            else f"{self.checkpoints.title}: resumes after epoch {run.epoch}"
        )

    def wants_state(self, run: Trainer) -> bool:
        return self.checkpoints.due(run.steps)

    def on_step_end(self, run: Trainer) -> None:
        if self.checkpoints.due(run.steps):
            self.checkpoints.save(run.state(), run.steps)

    def on_epoch_end(self, run: Trainer, last: bool) -> None:
        # The last state is always saved: a later command may come back to it.
        if last or self.checkpoints.due(run.steps):
            self.checkpoints.save(run.state(), run.steps)
