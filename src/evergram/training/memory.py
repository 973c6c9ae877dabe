"""Decide where tables are, and refuse what neither memory nor disk can hold, before it starts."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

import torch

from evergram.atomic_files import make_folder
from evergram.collectives import process_count
from evergram.data.corpus import Corpus
from evergram.errors import RecipeError, TrainingError
from evergram.training.recipe import ModelRecipe
from evergram.training.recipe.fit_settings import FitSettings

log: logging.Logger = logging.getLogger(__name__)

FLOAT = 4
# A layer has its gradient and Adam's two means beside it.
LAYER_COPIES = 4
# Mapped tables and those of the best epoch are files, as are the embeddings of all entities that
# are evaluated and published; a checkpoint has the first two.
MAPPED_COPIES, CHECKPOINT_COPIES = 2, 2
# Files that state a container's limit.
CGROUPS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def place_tables(
    settings: FitSettings, corpus: Corpus, device: torch.device, folder: Path | None
) -> Path | None:
    """Return the folder from which a training's tables are mapped; None keeps them in memory.

    Args:
        folder: of the run, on the disk that has room for it; None takes one for temporary files.
    Raises: RecipeError: the training needs more memory than there is, or tables cannot be mapped
        here. TrainingError: the disk has no room for them.
    """
    model, version, choice = settings.model, settings.version, settings.training.tables
    obstacle = _obstacle(settings, device)
    if choice == "mapped" and obstacle:
        raise RecipeError(
            f"training.tables is 'mapped', and {obstacle}; set training.tables = 'memory'"
            f"{'' if device.type == 'cpu' else ', or train with --device cpu'}."
        )
    exceeds = needed_bytes(model, corpus, version) > memory_bytes()
    if choice == "memory" or obstacle or (choice == "auto" and not exceeds):
        refuse_too_large(model, corpus, version)
        return None
    tables, vectors = _tables_bytes(model, corpus, version), _vectors_bytes(model, corpus, version)
    if needed_bytes(model, corpus, version) - tables - vectors > memory_bytes():
        refuse_too_large(model, corpus, version)
    place = Path(tempfile.gettempdir()) if folder is None else folder
    make_folder(place)
    copies = MAPPED_COPIES + (0 if folder is None else CHECKPOINT_COPIES)
    needed = copies * tables + vectors
    free = shutil.disk_usage(place).free
    if needed > free:
        raise TrainingError(
            f"Tables mapped from files need at least {needed:,} bytes of disk, and {place} has "
            f"{free:,} left; make room there, train where there is more, or lower model.dim."
        )
    if exceeds:
        log.warning(
            f"Tables of {tables:,} bytes and as many vectors as there are entities do not fit into "
            f"memory: they are mapped from files in "
            f"{place}, at the speed of that disk."
        )
    return place


def _obstacle(settings: FitSettings, device: torch.device) -> str:
    """Return why a model's tables cannot be mapped, in a clause; empty if they can."""
    model, task = settings.model, settings.task
    if task.chosen.wants_all_candidates:
        return f"task.kind = {task.kind!r} reads and moves all candidates in each step"
    if settings.training.optimizer in ("adam", "als"):
        return f"training.optimizer = {settings.training.optimizer!r} moves every row in each step"
    if not model.chosen.maps_tables:
        return f"the tables of {model.kind} take part in every step as a whole"
    if device.type != "cpu":
        return f"tables on {device.type} are in the device's memory"
    if process_count() > 1:
        return f"{process_count()} processes share each batch, each with tables of its own"
    return ""


def refuse_too_large(model: ModelRecipe, corpus: Corpus, version: int) -> None:
    """Compare what a training with tables in memory needs at least with what the machine has.

    Raises: RecipeError: the training needs more.
    """
    needed, there = needed_bytes(model, corpus, version), memory_bytes()
    if needed > there:
        entities = len(corpus.queries) + len(corpus.candidates)
        keys = [f"model.{key}" for key in ("dim", *model.chosen.size_keys)]
        sizes = " or ".join(filter(None, (", ".join(keys[:-1]), keys[-1])))
        raise RecipeError(
            f"Training {entities:,} entities with model.dim = {model.dim_of(version)} needs "
            f"at least {needed:,} bytes of memory, and this machine has {there:,}; lower "
            f"{sizes}."
        )


def refuse_candidates(settings: FitSettings, corpus: Corpus) -> None:
    """Refuse a training whose every step needs all candidates, where they cannot be at hand.

    Raises: RecipeError.
    """
    task = settings.task
    if not task.chosen.wants_all_candidates:
        return
    other = "set task.kind = 'pointwise', whose penalty on all pairs needs a batch's rows only"
    if settings.training.tables == "sharded":
        raise RecipeError(
            f"task.kind = {task.kind!r} reads all candidates in each step, and training.tables = "
            "'sharded' divides them among processes; set training.tables = 'memory', or "
            f"{other}."
        )
    dim = settings.model.dim_of(settings.version)
    needed = task.chosen.candidates_bytes(len(corpus.candidates), dim)
    needed += needed_bytes(settings.model, corpus, settings.version)
    there = memory_bytes()
    if needed > there:
        raise RecipeError(
            f"task.kind = {task.kind!r} has all {len(corpus.candidates):,} candidates in memory in "
            f"each step, so that training needs at least {needed:,} bytes, and this machine has "
            f"{there:,}; lower model.dim, or {other}."
        )


def needed_bytes(model: ModelRecipe, corpus: Corpus, version: int) -> int:
    """Return the bytes that a training of this version needs at least; it will use far more."""
    dim = model.dim_of(version)
    # Both sides' second moments are published in float64.
    total = 2 * 2 * FLOAT * dim * dim + _vectors_bytes(model, corpus, version)
    total += _tables_bytes(model, corpus, version)
    return total + LAYER_COPIES * FLOAT * model.chosen.layer_numbers(dim, version)


def _tables_bytes(model: ModelRecipe, corpus: Corpus, version: int) -> int:
    """Return the bytes of the tables of ids."""
    sizes = len(corpus.queries), len(corpus.candidates)
    rows = model.chosen.table_rows(*sizes, shared=corpus.shared_ids)
    return FLOAT * rows * model.dim_of(version)


def _vectors_bytes(model: ModelRecipe, corpus: Corpus, version: int) -> int:
    """Return the bytes of one vector for each entity."""
    entities = len(corpus.queries) + len(corpus.candidates)
    return FLOAT * entities * model.dim_of(version)


def memory_bytes() -> int:
    """Return the most that this process may use: the machine's memory, or its container's share."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in CGROUPS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(limits)
