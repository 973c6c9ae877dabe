"""A recipe: everything that a run is made of, in one TOML file, checked strictly.

`recipe` has the file, sets overrides and makes paths whole. Its tables are classes of settings, one
for each kind: those of [data], [model], [task] and [gramian] are in the `kinds.py` or `loaders.py`
of their rooms, and `tables` has the others. `evergram.kinds` compares what keys need. Checking a
recipe does not import torch, but for `split.last`.
"""

from evergram.training.recipe.recipe import Recipe, flat

__all__ = ["Recipe", "flat"]
