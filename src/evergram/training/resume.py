"""Going on where an interrupted run stopped, bit for bit."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from evergram.atomic_files import make_folder, replacing_path
from evergram.data.corpus import Corpus
from evergram.errors import TrainingError
from evergram.training.recipe import Recipe


class Resume:
    """One run's file of all its state, replaced whole; None as a folder keeps nothing.

    The file says which recipe, version and corpus it is of; for any other run it is as if it were
    not there.

    Args:
        folder: where; removed when the version is published.
        title: one run's name in the folder.
        every: seconds between two saves, so that short runs write nothing.
    """

    def __init__(self, folder: Path | None, title: str, key: str, every: float = 60.0) -> None:
        self.path = None if folder is None else folder / f"{title.replace(' ', '-')}.safetensors"
        self.key = key
        self.every = every
        self._saved = time.monotonic()

    def due(self) -> bool:
        return self.path is not None and time.monotonic() - self._saved >= self.every

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Raises: TrainingError: it cannot be written; what was saved before is still there."""
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
        """What was saved last, or None where there is nothing of this run."""
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


def run_key(
    recipe: Recipe,
    version: int,
    corpus: Corpus,
    joint: nn.Module | None,
    start: nn.Module | None = None,
) -> str:
    """What a run is a function of: its recipe, version, data, what it is aligned to, and what it
    goes on from."""
    digest = hashlib.sha256(recipe.model_dump_json().encode())
    digest.update(f"{version} {torch.__version__} {corpus.interactions.schema}".encode())
    for name in ("query", "candidate"):
        digest.update(corpus.column(name).numpy().tobytes())
    for side in (corpus.queries, corpus.candidates):
        digest.update("\n".join(map(str, side.vocabulary.keys.to_pylist())).encode())
    for name, buffer in () if joint is None else joint.named_buffers():
        digest.update(name.encode() + buffer.detach().cpu().numpy().tobytes())
    for name, value in () if start is None else start.state_dict().items():
        digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def gather(
    modules: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """All tensors of modules and optimisers, by name."""
    found = {
        f"{name}|{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }
    for i, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                found[f"optimizer{i}|{parameter}|{key}"] = value
    return found


def scatter(
    tensors: Mapping[str, Tensor],
    modules: Mapping[str, nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
) -> None:
    """The inverse of `gather`."""
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
    """The tensors under `name`, without it."""
    prefix = f"{name}|"
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
