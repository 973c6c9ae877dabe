"""Recipes: all settings of a run in one TOML file, with strict checks.

`recipe` reads the file, applies overrides and resolves paths. Each table is a class of settings,
one for each kind: `tables` has [split], [prior], [training] and [upgrade]; the others are in
`kinds.py` or `loaders.py` of their packages. `evergram.kinds` checks the requirements of keys.
Checking a recipe does not import torch unless it sets `split.last`.
"""

from evergram.training.recipe.recipe import Recipe, flat

__all__ = ["Recipe", "flat"]
