"""Refuse a training that needs more memory than the machine has, before it starts."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from torch import nn

from evergram.data.corpus import Corpus
from evergram.errors import RecipeError
from evergram.training.recipe import Recipe

FLOAT = 4
# Vectors are held in the model, as the best so far, and as what is published; a layer has its
# gradient and Adam's two means beside it.
TABLE_COPIES, LAYER_COPIES = 2, 4
# The recipe's keys that size a model, if there are more than model.dim.
SIZES = {
    "two_tower": "model.dim, model.input_dim or model.hidden",
    "graphsage": "model.dim, model.input_dim or model.layers",
}
# Files that state a container's limit.
CGROUPS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def refuse_too_large(
    recipe: Recipe, corpus: Corpus, version: int, own: nn.Module | None = None
) -> None:
    """Compare what a training needs at least with what the machine has.

    Args:
        own: the user's encoder; it is in memory already, and nothing is checked.
    Raises: RecipeError: the training needs more.
    """
    if own is not None:
        return
    needed, there = needed_bytes(recipe, corpus, version), memory_bytes()
    if needed > there:
        entities = len(corpus.queries) + len(corpus.candidates)
        raise RecipeError(
            f"Training {entities:,} entities with model.dim = {recipe.model.dim_of(version)} needs "
            f"at least {needed:,} bytes of memory, and this machine has {there:,}; lower "
            f"{SIZES.get(recipe.model.kind, 'model.dim')}."
        )


def needed_bytes(recipe: Recipe, corpus: Corpus, version: int) -> int:
    """Return the bytes that a training of this version needs at least; it will use far more."""
    model, entities = recipe.model, len(corpus.queries) + len(corpus.candidates)
    dim = model.dim_of(version)
    width = model.input_dim if model.kind in ("two_tower", "graphsage") else None
    # Both sides' second moments are published in float64.
    total = 2 * 2 * FLOAT * dim * dim + TABLE_COPIES * FLOAT * entities * dim
    if model.kind == "two_tower":
        sizes = [width or dim, *model.hidden, dim] if model.hidden else []
        total += 2 * LAYER_COPIES * FLOAT * sum(a * b for a, b in pairwise(sizes))
    if model.kind == "graphsage":
        inner, layers = width or dim, model.layers_of(version)
        total += 2 * LAYER_COPIES * FLOAT * inner * ((layers - 1) * inner + dim)
    return total


def memory_bytes() -> int:
    """Return the most that this process may use: the machine's memory, or its container's share."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in CGROUPS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(limits)
