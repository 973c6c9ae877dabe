"""Refuse a recipe that describes another model than the one that a frozen upgrade keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evergram.errors import RecipeError
from evergram.training.recipe import Recipe, flat

# The tables of a recipe that describe a model and what it was trained for.
DESCRIBED = ("model", "task")


def refuse_other_model(recipe: Recipe, kept: Mapping[str, Any], version: int) -> None:
    """Refuse settings that the model of a frozen upgrade was not trained with: they would change
    nothing, and the version's record would say otherwise.

    Args:
        kept: the recipe of the version whose model is kept, as its manifest has it.
        version: its number.
    Raises: RecipeError: a key of [model] or [task] has another value.
    """
    theirs, ours = (
        flat({table: values.get(table, {}) for table in DESCRIBED})
        for values in (each.model_dump(mode="json") for each in (Recipe.stored(kept), recipe))
    )
    changed = sorted(k for k in theirs | ours if theirs.get(k) != ours.get(k))
    if not changed:
        return
    shown = [
        f"{key} is {ours.get(key)!r} here and {theirs.get(key)!r} there" for key in changed[:3]
    ]
    shown += [f"{len(changed) - 3} more differ"] if len(changed) > 3 else []
    raise RecipeError(
        f"upgrade.start = 'frozen' keeps the model of version {version} as it was trained, and "
        f"the recipe describes another one: {'; '.join(shown)}. Give that version's values, or "
        "set upgrade.start = 'fresh' to train a model."
    )
