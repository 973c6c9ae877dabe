"""The search of a recipe for which no keys are named."""

from __future__ import annotations

from evergram.errors import RecipeError
from evergram.training.recipe import Recipe
from evergram.training.tuning.search_space import SearchSpace

DEFAULTS = (
    "task.penalty=log:0.01..10.0",
    "task.l2=log:1e-5..0.1",
    "training.table_rate=log:0.01..1.0",
    "training.layer_rate=log:1e-4..0.03",
)


def default_space(recipe: Recipe) -> SearchSpace:
    """Return those of the default ranges whose keys the recipe's task and model use.

    Raises: RecipeError: there are none.
    """
    used = [text for text in DEFAULTS if _is_used(recipe, text)]
    if not used:
        raise RecipeError("This recipe uses no key that is searched by default; name one.")
    return SearchSpace.parse(used)


def _is_used(recipe: Recipe, text: str) -> bool:
    try:
        SearchSpace.parse([text]).checked(recipe.model_dump())
    except RecipeError:
        return False
    return True
