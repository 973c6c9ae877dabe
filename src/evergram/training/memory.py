"""Refuse a training that needs more memory than the machine has, before it starts."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from evergram.data.corpus import Corpus
from evergram.errors import RecipeError
from evergram.training.recipe import ModelRecipe

FLOAT = 4
# Vectors are held in the model, as the best so far, and as what is published; a layer has its
# gradient and Adam's two means beside it.
TABLE_COPIES, LAYER_COPIES = 2, 4
# Files that state a container's limit.
CGROUPS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def refuse_too_large(
    model: ModelRecipe, corpus: Corpus, version: int, own: nn.Module | None = None
) -> None:
    """Compare what a training needs at least with what the machine has.

    Args:
        own: the user's encoder; it is in memory already, and nothing is checked.
    Raises: RecipeError: the training needs more.
    """
    if own is not None:
        return
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


def needed_bytes(model: ModelRecipe, corpus: Corpus, version: int) -> int:
    """Return the bytes that a training of this version needs at least; it will use far more."""
    entities = len(corpus.queries) + len(corpus.candidates)
    dim = model.dim_of(version)
    # Both sides' second moments are published in float64.
    total = 2 * 2 * FLOAT * dim * dim + TABLE_COPIES * FLOAT * entities * dim
    return total + LAYER_COPIES * FLOAT * model.chosen.layer_numbers(dim, version)


def memory_bytes() -> int:
    """Return the most that this process may use: the machine's memory, or its container's share."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in CGROUPS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(limits)
