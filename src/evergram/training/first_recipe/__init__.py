"""A first recipe for interactions that nobody has described yet: what `evergram init` calls.

Read in this order: `sources` (of which kind a path is, and which column is which), `survey` (what
is in it), `recipe_text` (the recipe, with comments), `first_recipe` (all of it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.training.first_recipe.first_recipe import FirstRecipe as FirstRecipe
    from evergram.training.first_recipe.first_recipe import first_recipe as first_recipe
    from evergram.training.first_recipe.survey import Survey as Survey

export_lazily(__name__)
