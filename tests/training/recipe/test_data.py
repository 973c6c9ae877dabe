"""The table [split]: the intervals of time, and combinations that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from evergram.errors import RecipeError
from evergram.training.recipe import Recipe
from evergram.training.recipe.data import SplitRecipe


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"versions": [0.6, 0.75]}, [0.6, 0.75, 0.9]),  # as far again
        ({"versions": [0.5, 0.9]}, [0.5, 0.9, 1.0]),  # but not past the end
        ({"versions": [0.5]}, [0.5, 1.0]),
        ({"versions": [0.5], "end": 0.6}, [0.5, 0.6]),
    ],
)
def test_each_version_is_tested_on_the_interval_after_it(
    settings: dict[str, Any], ends: list[float]
) -> None:
    assert SplitRecipe(kind="time", **settings).ends == pytest.approx(ends)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"versions": [0.8, 0.8]}, "must be one or more ascending shares"),
        ({"versions": [0.5, 0.8], "end": 0.8}, r"split\.end is 0\.8 .* nothing would be left"),
        ({"last": "5 %", "versions": [0.5]}, r"split\.last and split\.versions .* exclude"),
        ({"last": "5 %", "end": 0.95}, r"split\.last and split\.versions .* exclude"),
        ({"last": "a while"}, "a while"),
    ],
)
def test_a_split_that_cannot_be_is_refused(split: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.of({"data": {"kind": "synthetic"}, "split": {"kind": "time", **split}})
