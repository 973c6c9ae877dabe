"""By default a search is over keys that the recipe uses."""

from __future__ import annotations

import pytest

from evergram.training.recipe import Recipe
from evergram.training.tuning.default_space import DEFAULTS, default_space


@pytest.mark.parametrize(("kind", "layers"), [("factorization", False), ("two_tower", True)])
def test_keys_that_the_recipe_uses_are_searched(kind: str, layers: bool) -> None:
    recipe = Recipe.of({"data": {"kind": "synthetic"}, "model": {"kind": kind}})
    keys = [one.key for one in default_space(recipe).ranges]
    assert keys[:3] == ["task.penalty", "task.l2", "training.table_rate"]
    assert ("training.layer_rate" in keys) == layers
    assert len(keys) <= len(DEFAULTS)
