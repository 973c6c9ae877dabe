"""Checkpoints: the state of a training run on disk, identified by recipe and data."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from evergram.atomic_files import make_folder, replacing_path
from evergram.collectives import Collectives
from evergram.data.corpus import Corpus
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.split import Split
from evergram.encoders.encoder import SIDES
from evergram.errors import IntegrityError, RecipeError, TrainingError
from evergram.file_content import sha256
from evergram.training.callbacks import Callback
from evergram.training.distributed import ProcessCollectives
from evergram.training.progress import QUIET, Progress

if TYPE_CHECKING:
    from evergram.training.build import Companions
    from evergram.training.loop import Trainer

# Default seconds between two checkpoints; runs shorter than this write none before their end.
SECONDS = 60.0
# Number of checkpoints to keep; one fewer while another is being written.
KEPT = 2
# By default the next checkpoint waits at least this many times as long as the last one took to
# write, so that writing takes at most 2 % of the time.
PATIENCE = 50
FORMAT = "evergram-checkpoint-1"
SUFFIX = ".safetensors"
# Ids hashed per block.
BLOCK = 1 << 20
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointSettings:
    """When to write checkpoints and whether to resume; this does not change the result.

    >>> from evergram.training import CheckpointSettings
    >>> CheckpointSettings("5m").interval, CheckpointSettings(1000).interval
    ((300.0, None), (None, 1000))

    Args:
        every: the time between two checkpoints, such as "60s", "5m" or "1h"; or a number of steps,
            such as 1000. None is `SECONDS`, or longer if writing is slow.
        resume: "auto" resumes a run of the same recipe and data from its newest checkpoint;
            "never" removes its checkpoints and trains from the start.
    Raises: RecipeError: a value is not allowed.
    """

    every: str | int | None = None
    resume: Literal["auto", "never"] = "auto"

    def __post_init__(self) -> None:
        if self.every is not None and self.interval == (None, None):
            raise RecipeError(
                f"--checkpoint-every {self.every} is not valid; give a time such as 60s, 5m or "
                "1h, or a number of steps such as 1000."
            )
        if self.resume not in ("auto", "never"):
            raise RecipeError(f"--resume {self.resume} is unknown; it must be auto or never.")

    @property
    def interval(self) -> tuple[float | None, int | None]:
        """Seconds and steps between two checkpoints; at least one is None."""
        text = str(self.every).strip()
        if matched := re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smh])", text):
            return float(matched[1]) * _UNITS[matched[2]], None
        return None, int(text) if re.fullmatch(r"0*[1-9]\d{0,17}", text) else None

    def due(self, seconds: float, steps: int, cost: float) -> bool:
        """Return whether a checkpoint is due, `seconds` and `steps` after the last one, which took
        `cost` seconds to write."""
        interval, interval_steps = self.interval
        if interval_steps is not None:
            return steps >= interval_steps
        return seconds >= (max(SECONDS, PATIENCE * cost) if interval is None else interval)


# The default.
AUTOMATIC = CheckpointSettings()


def run_identity(
    recipe: str, version: int, split: Split, companions: Companions, purpose: str = ""
) -> dict[str, str]:
    """Return everything that decides a run's result on one machine, by name, large values as
    digests; `purpose` distinguishes otherwise equal runs, such as a refit."""
    return {
        "recipe": recipe,
        "version": str(version),
        "corpus": corpus_digest(split.training),
        "choice of pairs that select an epoch": _hashed(
            [split.selection.query, split.selection.candidate]
        ),
        "set of modules or version before it": modules_digest(companions),
        "number of steps": purpose,
        "torch": torch.__version__,
        "content of a file that [prior] or a measure names": files_digest(json.loads(recipe)),
    }


def difference(mine: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the first difference of another run's identity, such as "another corpus"; or ""."""
    for name, value in mine.items():
        if other.get(name) != value:
            values = f" ({other.get(name)}, here {value})" if name in ("torch", "version") else ""
            return f"another {name}{values}"
    return ""


def files_digest(recipe: Mapping[str, Any]) -> str:
    """Return a digest of the files in [prior] and [task] of a recipe; "" if there are none."""
    prior, task = recipe.get("prior") or {}, recipe.get("task") or {}
    values = []
    for side in SIDES:
        measures = task.get(f"{side}_measure") or []
        values += [prior.get(side), *(measures if isinstance(measures, list) else [measures])]
    paths = [Path(value) for value in values if isinstance(value, str)]
    # Reading a missing file later raises a better error.
    return _hashed(sha256(p) if p.is_file() else "none" for p in paths) if paths else ""


def corpus_digest(corpus: Corpus) -> str:
    """Return a digest of a corpus: all columns of its interactions, its ids, and its features."""
    if isinstance(corpus, MappedCorpus):
        return corpus.fingerprint
    columns = (corpus.column(name) for name in corpus.interactions.column_names)
    sides = (
        (
            side.vocabulary.keys,
            ((n, f.vocabulary.keys, f.offsets, f.indices) for n, f in side.features.items()),
        )
        for side in corpus.sides.values()
    )
    return _hashed([f"{corpus.interactions.schema} {corpus.shared_ids}", columns, sides])


def modules_digest(companions: Companions) -> str:
    """Return a digest of the modules that a run starts from or aligns to. Of the joint alignment it
    covers the buffers, which hold the previous version's vectors."""
    joint, others = companions.joint, (companions.start, companions.own)
    groups: list[Any] = [() if joint is None else joint.named_buffers()]
    groups += [() if module is None else module.state_dict().items() for module in others]
    return _hashed(("|", group) for group in groups)


def _hashed(value: Any) -> str:
    """Return the SHA-256 of strings, tensors, arrays of ids, and nested iterables of these."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, str):
            digest.update(value.encode())
        elif isinstance(value, Tensor):
            plain = value.detach().cpu().contiguous().reshape(-1)
            digest.update(plain.view(torch.uint8).numpy().data if len(plain) else b"")
        elif isinstance(value, pa.Array):
            digest.update(f"{value.type} {len(value)}".encode())
            for start in range(0, len(value), BLOCK):
                block = pa.record_batch([value.slice(start, BLOCK)], ["id"])
                digest.update(memoryview(block.serialize()))
        else:
            for each in value:
                add(each)

    add(value)
    return digest.hexdigest()


@dataclass(frozen=True)
class TrainingState:
    """Everything that the next step depends on: tensors, and counters and records as JSON."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def write_state(path: Path, identity: Mapping[str, str], state: TrainingState) -> None:
    """Write a run's state to a file, atomically.

    Raises: TrainingError: the file cannot be written; an existing one is unchanged.
    """
    tensors: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in state.tensors.items():
        dense = tensor.detach().cpu().contiguous()
        storage = dense.untyped_storage().data_ptr()
        # Shared parameters have several names, and safetensors cannot store views.
        tensors[name] = dense.clone() if storage in storages else dense
        storages.add(storage)
    # Tensors and facts go into one file, so that one rename replaces both.
    metadata = {"format": FORMAT} | {
        "identity": json.dumps(dict(identity)),
        "facts": json.dumps(dict(state.facts)),
    }
    metadata["sha256"] = _digest(metadata, tensors)
    try:
        make_folder(path.parent)
        with replacing_path(path) as part:
            save_file(tensors, part, metadata=metadata)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        size = sum(tensor.nbytes for tensor in tensors.values())
        raise TrainingError(
            f"Cannot write a checkpoint of {size:,} bytes to {path.parent}: {reason}; free some "
            "space there, or choose another --lineage."
        ) from error


def read_state(path: Path, identity: Mapping[str, str]) -> TrainingState:
    """Read a run's state and check its SHA-256.

    Raises: IntegrityError: the file is damaged, or another run or another release wrote it.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            if metadata.get("format") != FORMAT:
                raise IntegrityError(f"{path.name} was written by another release of Evergram.")
            another = difference(identity, json.loads(metadata["identity"]))
            if another:
                raise IntegrityError(f"{path.name} is of {another}.")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        written = metadata.pop("sha256")
        if _digest(metadata, tensors) != written:
            raise IntegrityError(f"{path.name} is damaged: its SHA-256 does not match.")
        facts = json.loads(metadata["facts"])
    except IntegrityError:
        raise
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"{path.name} is damaged: it is truncated or not a safetensors file."
        ) from error
    return TrainingState(tensors, facts)


def _digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a state: metadata, and each tensor's name, dtype, shape and bytes."""
    described = ((f"{n} {t.dtype} {list(t.shape)}", t) for n, t in sorted(tensors.items()))
    return _hashed([json.dumps(dict(metadata), sort_keys=True), described])


class Checkpoints(Callback):
    """Restores a run from its newest checkpoint, writes checkpoints after steps and epochs, and
    keeps the newest ones in a folder, as `TITLE.STEPS.safetensors`.

    It must be the first callback, so that the others start from their restored state.

    Args:
        folder: None saves nothing.
        title: the run's name in file names and messages.
        identity: of the run, from `run_identity`.
    """

    everywhere = True

    def __init__(
        self,
        folder: Path | None,
        title: str,
        identity: Mapping[str, str],
        settings: CheckpointSettings = AUTOMATIC,
        progress: Progress = QUIET,
    ) -> None:
        self.folder = folder
        self.title = title
        self.identity = identity
        self.settings = settings
        self.progress = progress
        self._stem = title.replace(" ", "-")
        self._saved, self._steps, self._cost = time.monotonic(), 0, 0.0
        # Checkpoints of this run, oldest first.
        self._kept: list[Path] = []

    def on_start(self, run: Trainer) -> None:
        state = state_of_first(self.load(), run.step.collectives)
        if state is not None:
            run.load_state(state)
            position = f"after epoch {run.epoch}"
            if run.batches:
                batches = f"{run.batches:,} of its {len(run.sampler):,} batches"
                position = f"in epoch {run.epoch}, after {batches}"
            self.progress.say(f"{self.title}: resumes {position}")

    def on_step_end(self, run: Trainer) -> None:
        self._save_if(self.due(run.steps), run)

    def on_epoch_end(self, run: Trainer, last: bool) -> None:
        # Always save the last state, from which a later command may continue.
        self._save_if(self.due(run.steps) or (last and self.folder is not None), run)

    def _save_if(self, due: bool, run: Trainer) -> None:
        if due:
            started = time.monotonic()
            self.save(run.state(), run.steps)
            self._cost = time.monotonic() - started

    def due(self, steps: int) -> bool:
        """Return whether a checkpoint is due after `steps` steps of the run."""
        since = time.monotonic() - self._saved
        return self.folder is not None and self.settings.due(since, steps - self._steps, self._cost)

    def save(self, state: TrainingState, steps: int) -> None:
        """Write a checkpoint after `steps` steps, and remove old ones.

        Raises: TrainingError: it cannot be written; the previous one still exists.
        """
        if self.folder is None:
            return
        path = self.folder / f"{self._stem}.{steps:012d}{SUFFIX}"
        # Make room first, but keep the newest checkpoint until the next one is complete.
        others = [p for p in self._kept if p != path]
        for old in others[: 1 - KEPT]:
            old.unlink(missing_ok=True)
        write_state(path, self.identity, state)
        self._kept = [*others[1 - KEPT :], path]
        for old in self._paths():
            if old not in self._kept:
                old.unlink(missing_ok=True)
        self._saved, self._steps = time.monotonic(), steps

    def load(self) -> TrainingState | None:
        """Return the newest valid state of this run, or None.

        With `resume` "never", remove every checkpoint of this title instead. Log a warning for
        checkpoints that are damaged or from another run.
        """
        paths = self._paths()
        if paths and self.settings.resume == "never":
            newest = paths[-1].name
            log.warning(f"--resume never: removing {newest}; {self.title} starts again.")
            for path in paths:
                path.unlink(missing_ok=True)
            return None
        while paths:
            try:
                state = read_state(paths[-1], self.identity)
            except IntegrityError as error:
                paths.pop()
                remedy = "Trying the previous checkpoint."
                if not paths:
                    remedy = f"{self.title} starts again, and its first checkpoint replaces it."
                log.warning(f"{error} {remedy}")
            else:
                self._kept = paths
                return state
        return None

    def _paths(self) -> list[Path]:
        """Return the checkpoints of the run's title, oldest first."""
        if self.folder is None or not self.folder.is_dir():
            return []
        name = re.compile(rf"{re.escape(self._stem)}\.\d{{12}}{re.escape(SUFFIX)}")
        return sorted(p for p in self.folder.iterdir() if name.fullmatch(p.name))


def state_of_first(state: TrainingState | None, together: Collectives) -> TrainingState | None:
    """Return the first process's state in every process."""
    if not isinstance(together, ProcessCollectives):
        return state
    mine = {} if state is None else state.tensors
    facts, shapes = together.from_first(
        lambda: (state and state.facts, {n: (t.dtype, t.shape) for n, t in mine.items()})
    )
    if facts is None:
        return None
    tensors = {
        name: together.broadcast(mine.get(name, torch.empty(shape, dtype=dtype)))
        for name, (dtype, shape) in shapes.items()
    }
    return TrainingState(tensors, facts)
