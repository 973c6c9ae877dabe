"""Resume an interrupted run where it stopped, bit for bit."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from evergram.atomic_files import make_folder, replacing_path
from evergram.data.corpus import Corpus
from evergram.errors import TrainingError
from evergram.training.callbacks import Callback

if TYPE_CHECKING:
    from evergram.training.loop import Trainer
    from evergram.training.monitors.early_stopping import EarlyStopping


class ResumeFile:
    """The file of one run's whole state, replaced in one rename.

    The file records its run's key; a run with another key ignores it.

    Args:
        folder: the checkpoint folder, removed when the version is published; None saves nothing.
        title: the run's name in the folder.
        key: digest of the run's recipe, version, corpus and modules, see `run_key`.
        every: seconds between two saves, so that short runs write nothing.
    """

    def __init__(self, folder: Path | None, title: str, key: str, every: float = 60.0) -> None:
        self.path = None if folder is None else folder / f"{title.replace(' ', '-')}.safetensors"
        self.key = key
        self.every = every
        self._saved = time.monotonic()

    def due(self) -> bool:
        """Whether the last save is long enough ago."""
        return self.path is not None and time.monotonic() - self._saved >= self.every

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replace what was saved before.

        Raises: TrainingError: the file cannot be written; the previous one is still there.
        """
        if self.path is None:
            return
        flat = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        try:
            make_folder(self.path.parent)
            # Tensors and facts in one file: one rename replaces both.
            with replacing_path(self.path) as part:
                save_file(flat, part, metadata={"key": self.key, "facts": json.dumps(facts)})
        except (OSError, SafetensorError) as error:
            size = sum(t.numel() * t.element_size() for t in flat.values())
            why = getattr(error, "strerror", None) or str(error).rstrip(".")
            raise TrainingError(
                f"The state of the training, {size:,} bytes, cannot be kept in {self.path.parent}: "
                f"{why}; make room there, or choose another --lineage."
            ) from error
        self._saved = time.monotonic()

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the tensors and facts saved last; None if nothing of this run is there."""
        if self.path is None or not self.path.is_file():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("key") != self.key:
                    return None
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError:
            return None
        return tensors, json.loads(metadata["facts"])


class Resumption(Callback):
    """Restores a run from its file at the start, and saves it after epochs.

    Args:
        stopping: the selection to save and restore with the run; None where nothing is selected.
    """

    def __init__(self, file: ResumeFile, stopping: EarlyStopping | None = None) -> None:
        self.file = file
        self.stopping = stopping

    def on_start(self, run: Trainer) -> None:
        saved = self.file.load()
        if saved is None:
            return
        tensors, facts = saved
        run.load_state(tensors, facts["epoch"], facts["seconds"])
        if self.stopping is not None:
            self.stopping.kept = named(tensors, "kept")
            self.stopping.history = facts["history"]
            self.stopping.best = facts["best"]
            self.stopping.best_epoch = facts["best_epoch"]

    def on_epoch_end(self, run: Trainer, last: bool) -> None:
        # The last state is always saved: a later command may come back to it.
        if not last and not self.file.due():
            return
        tensors = run.state()
        facts: dict[str, Any] = {"epoch": run.epoch, "seconds": run.seconds}
        if self.stopping is not None:
            tensors |= {f"kept|{name}": value for name, value in self.stopping.kept.items()}
            facts["history"] = self.stopping.history
            facts |= {"best": self.stopping.best, "best_epoch": self.stopping.best_epoch}
        self.file.save(tensors, facts)


def run_key(
    recipe: str,
    version: int,
    corpus: Corpus,
    joint: nn.Module | None = None,
    start: nn.Module | None = None,
    own: nn.Module | None = None,
) -> str:
    """Return a digest of a run's recipe, version, corpus, modules and release of torch.

    Args:
        recipe: JSON of the whole recipe.
        joint: what is trained together with the encoder; its buffers count.
        start: the encoder that training starts from.
        own: an encoder of the user's modules, in the place of the recipe's.
    """
    digest = hashlib.sha256(recipe.encode())
    digest.update(f"{version} {torch.__version__} {corpus.interactions.schema}".encode())
    for name in ("query", "candidate"):
        digest.update(corpus.column(name).numpy().tobytes())
    for side in (corpus.queries, corpus.candidates):
        digest.update("\n".join(map(str, side.vocabulary.keys.to_pylist())).encode())
    for name, buffer in () if joint is None else joint.named_buffers():
        digest.update(name.encode() + buffer.detach().cpu().numpy().tobytes())
    for module in (start, own):
        for name, value in () if module is None else module.state_dict().items():
            digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def gather(
    modules: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """Return all tensors of modules and optimisers, by name; not copied."""
    tensors = {
        f"{name}|{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }
    for i, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                tensors[f"optimizer{i}|{parameter}|{key}"] = value
    return tensors


def scatter(
    tensors: Mapping[str, Tensor],
    modules: Mapping[str, nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
) -> None:
    """Copy what `gather` gave back into modules and optimisers."""
    for name, module in modules.items():
        module.load_state_dict(named(tensors, name))
    for i, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in named(tensors, f"optimizer{i}").items():
            parameter, key = name.split("|")
            state.setdefault(int(parameter), {})[key] = value
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def named(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors whose name starts with `name`, without that prefix."""
    prefix = f"{name}|"
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
