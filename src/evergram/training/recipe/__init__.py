"""A recipe: everything that a run is made of, in one TOML file, checked strictly.

Read `recipe` (the model of the file), then `values` (overrides), `used_keys` (a key that nothing
uses is an error), `methods` (the methods of [BC] as settings) and `automatic` ("auto" resolved).
"""

from evergram.training.recipe.recipe import (
    CLOSED,
    CompareRecipe,
    GramianRecipe,
    PriorRecipe,
    Recipe,
    TaskRecipe,
    TrainingRecipe,
    flat,
)

__all__ = [
    "CLOSED",
    "CompareRecipe",
    "GramianRecipe",
    "PriorRecipe",
    "Recipe",
    "TaskRecipe",
    "TrainingRecipe",
    "flat",
]
