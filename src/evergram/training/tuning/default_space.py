"""The search of a recipe for which no keys are named."""

from __future__ import annotations

from evergram.errors import RecipeError
from evergram.training.recipe import Recipe
from evergram.training.tuning.search_space import SearchSpace

# A softmax over all candidates has no need of a penalty; its temperature is what matters most.
OF_SOFTMAX = ("task.temperature=log:0.03..1.0", "task.push=0.8..1.5")
OF_OTHERS = ("task.penalty=log:0.01..10.0", "task.l2=log:1e-5..0.1")
# Only of a recipe that has neighbours, as they take memory by the size of the catalogue.
OF_NEIGHBOURS = "task.neighbour_share=0.02..0.5"
SOFTMAX_KINDS = ("softmax_all", "softmax_clustered")
# Adam's step is of the rate's own size; the others divide it by what gradients have been.
RATES = ("training.table_rate=log:0.01..1.0", "training.layer_rate=log:1e-4..0.03")
RATES_OF_ADAM = ("training.table_rate=log:0.001..0.1", RATES[1])


def default_space(recipe: Recipe) -> SearchSpace:
    """Return those of the default ranges whose keys the recipe's task and model use.

    Raises: RecipeError: there are none.
    """
    objective = list(OF_SOFTMAX if recipe.task.kind in SOFTMAX_KINDS else OF_OTHERS)
    if getattr(recipe.task, "neighbour_share", 0.0):
        objective.append(OF_NEIGHBOURS)
    rates = RATES_OF_ADAM if recipe.training.optimizer == "adam" else RATES
    used = [text for text in (*objective, *rates) if _is_used(recipe, text)]
    if not used:
        raise RecipeError("This recipe uses no key that is searched by default; name one.")
    return SearchSpace.parse(used)


def _is_used(recipe: Recipe, text: str) -> bool:
    try:
        SearchSpace.parse([text]).checked(recipe.model_dump())
    except RecipeError:
        return False
    return True
