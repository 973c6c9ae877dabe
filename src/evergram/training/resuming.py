"""The state of a running training on disk: checkpoints, whose they are, when they are written."""

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
from evergram.data.prepared.prepare import sha256_of
from evergram.data.split import Split
from evergram.encoders.encoder import SIDES
from evergram.errors import IntegrityError, RecipeError, TrainingError
from evergram.training.callbacks import Callback
from evergram.training.distributed import ProcessCollectives
from evergram.training.progress import QUIET, Progress

if TYPE_CHECKING:
    from evergram.training.build import Companions
    from evergram.training.loop import Trainer

# Seconds between two checkpoints where nothing is chosen: short runs write none on their way.
SECONDS = 60.0
# Checkpoints that are kept; one less while another is written.
KEPT = 2
# Large states are written less often: the next checkpoint comes after at least this many times the
# seconds that the last one took, so that writing takes at most 2 % of the time.
PATIENCE = 50
FORMAT = "evergram-checkpoint-1"
SUFFIX = ".safetensors"
# Ids that are hashed at a time.
BLOCK = 1 << 20
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointSettings:
    """How a training is saved; it does not change the result.

    >>> from evergram.training import CheckpointSettings
    >>> CheckpointSettings("5m").interval, CheckpointSettings(1000).interval
    ((300.0, None), (None, 1000))

    Args:
        every: the time between two checkpoints, such as "60s", "5m" or "1h"; or the number of
            steps, such as 1000. None is `SECONDS`, or longer where writing one takes long.
        resume: "auto" resumes a run of the same recipe and data from its newest checkpoint;
            "never" drops its checkpoints and trains from the start.
    Raises: RecipeError: a value is not allowed.
    """

    every: str | int | None = None
    resume: Literal["auto", "never"] = "auto"

    def __post_init__(self) -> None:
        if self.every is not None and self.interval == (None, None):
            raise RecipeError(
                f"--checkpoint-every {self.every} is not understood; give a time such as 60s, 5m "
                "or 1h, or a number of steps such as 1000."
            )
        if self.resume not in ("auto", "never"):
            raise RecipeError(f"--resume {self.resume} is not known; it must be auto or never.")

    @property
    def interval(self) -> tuple[float | None, int | None]:
        """The seconds, or the steps, between two checkpoints."""
        text = str(self.every).strip()
        if matched := re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smh])", text):
            return float(matched[1]) * _UNITS[matched[2]], None
        return None, int(text) if re.fullmatch(r"0*[1-9]\d{0,17}", text) else None

    def due(self, seconds: float, steps: int, cost: float) -> bool:
        """Return whether a checkpoint is due, `seconds` and `steps` after the last one, which took
        `cost` seconds."""
        least, least_steps = self.interval
        if least_steps is not None:
            return steps >= least_steps
        return seconds >= (max(SECONDS, PATIENCE * cost) if least is None else least)


# When nothing is chosen.
AUTOMATIC = CheckpointSettings()


def run_identity(
    recipe: str, version: int, split: Split, companions: Companions, purpose: str = ""
) -> dict[str, str]:
    """Return, by its name, everything that decides a run's result on one machine, as digests;
    `purpose` tells runs apart that are otherwise the same, such as a refit."""
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
    """Return how another run differs from this one, such as "another corpus"; or ""."""
    for name, value in mine.items():
        if other.get(name) != value:
            shown = f" ({other.get(name)}, here {value})" if name in ("torch", "version") else ""
            return f"another {name}{shown}"
    return ""


def files_digest(recipe: Mapping[str, Any]) -> str:
    """Return a digest of the files that a recipe names besides its data; "" if it names none."""
    prior, task = recipe.get("prior") or {}, recipe.get("task") or {}
    named = []
    for side in SIDES:
        measures = task.get(f"{side}_measure") or []
        named += [prior.get(side), *(measures if isinstance(measures, list) else [measures])]
    paths = [Path(name) for name in named if isinstance(name, str)]
    # A missing file is refused where it is read.
    return _hashed(sha256_of(p) if p.is_file() else "none" for p in paths) if paths else ""


def corpus_digest(corpus: Corpus) -> str:
    """Return a digest of a corpus: interactions with all their columns, ids, and features."""
    if isinstance(corpus, MappedCorpus):
        return corpus.fingerprint
    columns = (corpus.column(name) for name in corpus.interactions.column_names)
    sides = (
        (
            side.vocabulary.keys,
            ((n, f.vocabulary.keys, f.offsets, f.indices) for n, f in side.features.items()),
        )
        for side in (corpus.queries, corpus.candidates)
    )
    return _hashed([f"{corpus.interactions.schema} {corpus.shared_ids}", columns, sides])


def modules_digest(companions: Companions) -> str:
    """Return a digest of the modules that a run starts from or aligns to: of a joint module its
    buffers, which hold the past."""
    joint, others = companions.joint, (companions.start, companions.own)
    groups: list[Any] = [() if joint is None else joint.named_buffers()]
    groups += [() if module is None else module.state_dict().items() for module in others]
    return _hashed(("|", group) for group in groups)


def _hashed(value: Any) -> str:
    """Return the SHA-256 of texts, tensors, arrays of ids, and whatever yields these."""
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
    """Everything that a training's next step depends on: tensors by name, and counters and records
    as JSON."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def write_state(path: Path, identity: Mapping[str, str], state: TrainingState) -> None:
    """Replace the file of a run's state, whole or not at all.

    Raises: TrainingError: the file cannot be written; nothing has changed.
    """
    tensors: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in state.tensors.items():
        dense = tensor.detach().cpu().contiguous()
        storage = dense.untyped_storage().data_ptr()
        # Modules that share parameters have them under several names, and a file has no views.
        tensors[name] = dense.clone() if storage in storages else dense
        storages.add(storage)
    # Tensors and facts are in one file: one rename replaces both.
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
        why = getattr(error, "strerror", None) or str(error).rstrip(".")
        size = sum(tensor.nbytes for tensor in tensors.values())
        raise TrainingError(
            f"The state of the training, {size:,} bytes, cannot be kept in {path.parent}: {why}; "
            "make room there, or choose another --lineage."
        ) from error


def read_state(path: Path, identity: Mapping[str, str]) -> TrainingState:
    """Return a run's state, after comparing it with its SHA-256.

    Raises: IntegrityError: a file is damaged, is of another run, or another release wrote it.
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
            raise IntegrityError(f"{path.name} is damaged: its SHA-256 is not the one it states.")
        facts = json.loads(metadata["facts"])
    except IntegrityError:
        raise
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"{path.name} is damaged: it is cut, or no file of safetensors."
        ) from error
    return TrainingState(tensors, facts)


def _digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a state: metadata, and every tensor's name, type, shape and bytes."""
    described = ((f"{n} {t.dtype} {list(t.shape)}", t) for n, t in sorted(tensors.items()))
    return _hashed([json.dumps(dict(metadata), sort_keys=True), described])


class Checkpoints(Callback):
    """Restores a run from its newest checkpoint at the start, saves it after steps and epochs, and
    keeps the newest ones, `TITLE.STEPS.safetensors`, in a folder.

    It must be the first of a run's callbacks, so that the others start from their restored state.

    Args:
        folder: None saves nothing.
        title: the run's name in the folder, and in messages.
        identity: of the run.
        settings: when checkpoints are written, and whether they are read.
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
            where = f"after epoch {run.epoch}"
            if run.batches:
                batches = f"{run.batches:,} of its {len(run.sampler):,} batches"
                where = f"in epoch {run.epoch}, after {batches}"
            self.progress.say(f"{self.title}: resumes {where}")

    def on_step_end(self, run: Trainer) -> None:
        self._save_if(self.due(run.steps), run)

    def on_epoch_end(self, run: Trainer, last: bool) -> None:
        # The last state is always saved: a later command may come back to it.
        self._save_if(self.due(run.steps) or (last and self.folder is not None), run)

    def _save_if(self, due: bool, run: Trainer) -> None:
        if run.agreed(due):
            started = time.monotonic()
            self.save(run.state(), run.steps)
            self._cost = time.monotonic() - started

    def due(self, steps: int) -> bool:
        """Return whether a checkpoint is due after `steps` steps of the run."""
        since = time.monotonic() - self._saved
        return self.folder is not None and self.settings.due(since, steps - self._steps, self._cost)

    def save(self, state: TrainingState, steps: int) -> None:
        """Write a checkpoint after `steps` steps, and remove those that are not kept.

        Raises: TrainingError: it cannot be written; an earlier one is still there.
        """
        if self.folder is None:
            return
        path = self.folder / f"{self._stem}.{steps:012d}{SUFFIX}"
        # Make room first. On a full disk one good checkpoint is worth more than none: the only one
        # stays until the next one is whole.
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
        """Return the newest whole state of this run, or None.

        With `resume` "never" every checkpoint of the title is removed. A warning names checkpoints
        that are damaged or of another run.
        """
        paths = self._paths()
        if paths and self.settings.resume == "never":
            newest = paths[-1].name
            log.warning(f"--resume never: drops {newest}, and trains {self.title} anew.")
            for path in paths:
                path.unlink(missing_ok=True)
            return None
        while paths:
            try:
                state = read_state(paths[-1], self.identity)
            except IntegrityError as error:
                paths.pop()
                remedy = "The checkpoint before it is tried."
                if not paths:
                    remedy = f"{self.title} is trained anew, and its first checkpoint replaces it."
                log.warning(f"{error} {remedy}")
            else:
                self._kept = paths
                return state
        return None

    def _paths(self) -> list[Path]:
        """Return the files of the run's title, oldest first."""
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
