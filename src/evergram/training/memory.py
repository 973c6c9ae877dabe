"""Decide where tables are, and refuse what neither memory nor disk can hold, before it starts."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from evergram.atomic_files import make_folder
from evergram.collectives import process_count
from evergram.data.prepared.prepare import machine_memory
from evergram.encoders.features import SIDES, Schema
from evergram.encoders.kinds import EncoderSettings
from evergram.errors import RecipeError, TrainingError
from evergram.kinds import Trait, traits_where
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.recipe.training import MAPPED

log: logging.Logger = logging.getLogger(__name__)

FLOAT = 4
# A layer also has its gradient and Adam's two means.
LAYER_COPIES = 4
# Mapped tables and those of the best epoch are files, as are the embeddings of all entities that
# are evaluated and published; a checkpoint has the first two.
MAPPED_COPIES, CHECKPOINT_COPIES = 2, 2


def place_tables(
    settings: FitSettings, schema: Schema, device: torch.device, folder: Path | None
) -> Path | None:
    """Return the folder from which a training's tables are mapped; None keeps them in memory.

    Args:
        schema: of the corpus.
        folder: of the run, on the disk that has room for it; None takes one for temporary files.
    Raises: RecipeError: the training needs more memory than there is. TrainingError: the disk has
        no room for them.
    """
    model, version, choice = settings.model, settings.version, settings.training.tables
    dim, sizes = model.dim_of(version), {side: len(schema.ids(side)) for side in SIDES}
    needed = needed_bytes(model, schema, version)
    needed += settings.task.candidates_bytes(sizes["candidate"], dim)
    has = settings.traits | run_traits(device)
    can_map = choice != "memory" and all(trait in has for trait in MAPPED.traits)
    exceeds = needed > machine_memory()
    if not (choice == "mapped" or (exceeds and can_map)):
        refuse_beyond_memory(settings, needed, sizes, dim)
        return None
    tables, vectors = _tables_and_vectors(model, schema, version)
    refuse_beyond_memory(settings, needed - tables - vectors, sizes, dim)
    place = Path(tempfile.gettempdir()) if folder is None else folder
    make_folder(place)
    copies = MAPPED_COPIES + (0 if folder is None else CHECKPOINT_COPIES)
    needed, free = copies * tables + vectors, shutil.disk_usage(place).free
    if needed > free:
        raise TrainingError(
            f"Tables mapped from files need at least {needed:,} bytes of disk, and {place} has "
            f"{free:,} left; make room there, train where there is more, or lower model.dim."
        )
    if exceeds:
        log.warning(
            f"Tables of {tables:,} bytes and as many vectors as there are entities do not fit into "
            f"memory: they are mapped from files in {place}, at the speed of that disk."
        )
    return place


def refuse_beyond_memory(
    settings: FitSettings, needed: int, sizes: Mapping[str, int], dim: int
) -> None:
    """Raises: RecipeError: a process needs more bytes of memory than there are.

    Args:
        sizes: entities of each side.
        dim: D.
    """
    there = machine_memory()
    if needed <= there:
        return
    model, task = settings.model, settings.task
    whole, size = "", f"model.dim = {dim}"
    ways = [f"lower {' or '.join(f'model.{k}' for k in ('dim', *model.size_keys))}"]
    if not model.made_by_recipe:
        size, ways = f"vectors of {dim} numbers", ["give modules of shorter vectors"]
    if task.wants_all_candidates:
        whole = f" and all {sizes['candidate']:,} candidates in each step"
        ways.append(
            "set task.kind = 'pointwise', whose penalty on all pairs needs a batch's rows only"
        )
    raise RecipeError(
        f"Training {sum(sizes.values()):,} entities with {size}{whole} needs at least "
        f"{needed:,} bytes of memory, and this machine has {there:,}; "
        f"{', or '.join(ways)}."
    )


def run_traits(device: torch.device, *, joint: bool = False) -> frozenset[Trait]:
    """Return the traits of a run, `joint` with a transform."""
    return traits_where(
        {
            Trait.CPU: device.type == "cpu",
            Trait.ONE_PROCESS: process_count() == 1,
            Trait.NO_JOINT_TRANSFORM: not joint,
        }
    )


def needed_bytes(model: EncoderSettings, schema: Schema, version: int) -> int:
    """Return the bytes that a training of this version needs at least; it will use far more."""
    dim = model.dim_of(version)
    # Both sides' second moments are published in float64.
    moments = 2 * 2 * FLOAT * dim * dim
    layers = LAYER_COPIES * FLOAT * model.layer_numbers(dim, version)
    return moments + sum(_tables_and_vectors(model, schema, version)) + layers


def _tables_and_vectors(model: EncoderSettings, schema: Schema, version: int) -> tuple[int, int]:
    """Return the bytes of the tables of ids, and of one vector for each entity."""
    query, candidate = (schema.ids(side) for side in SIDES)
    sizes, row = (len(query), len(candidate)), FLOAT * model.dim_of(version)
    return row * model.table_rows(*sizes, shared=query is candidate), row * sum(sizes)
