"""A recipe: everything that a run is made of, in one TOML file, checked strictly.

Read `table` (the base of every table of the file, and of those with kinds), then `data`,
`objective`, `training` and `upgrade` (the tables), and `recipe` (the file). `used_keys` refuses a
key that nothing uses, `values` sets overrides and whole paths, `methods` has the methods of [BC] as
settings and `presets` the settings of its experiments, and `automatic` turns "auto" into numbers.
Checking a recipe does not import torch, but for `split.last`.
"""

from evergram.training.recipe.objective import (
    GramianRecipe,
    ModelRecipe,
    PriorRecipe,
    TaskRecipe,
)
from evergram.training.recipe.recipe import Recipe
from evergram.training.recipe.training import TrainingRecipe
from evergram.training.recipe.upgrade import CompareRecipe, UpgradeRecipe
from evergram.training.recipe.values import flat

__all__ = [
    "CompareRecipe",
    "GramianRecipe",
    "ModelRecipe",
    "PriorRecipe",
    "Recipe",
    "TaskRecipe",
    "TrainingRecipe",
    "UpgradeRecipe",
    "flat",
]
