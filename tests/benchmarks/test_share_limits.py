"""The benchmark of limits on shares says settings whole, and puts the best first."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.share_limits import SETTINGS, SHORT, Row, Setting, table

from evergram.training.recipe import Recipe

ROOT = Path(__file__).parents[2]


def setting_of(recipe: Recipe) -> Setting:
    task = recipe.task.model_dump()
    return Setting(
        task["temperature"],
        task["largest_share"],
        task["push"],
        task["neighbour_share"],
        recipe.training.rescale_rows,
    )


def test_a_setting_without_a_limit_takes_the_recipes_away() -> None:
    path = ROOT / "recipes" / "gowalla-softmax.toml"
    for share in (0.02, None):
        recipe = Recipe.load(path, [*SHORT, *Setting(0.3, share, 1.5).overrides()])
        assert setting_of(recipe) == Setting(0.3, share, 1.5)


@pytest.mark.parametrize("name", SETTINGS)
def test_what_a_recipe_sets_is_among_the_settings(name: str) -> None:
    recipe = Recipe.load(ROOT / "recipes" / f"{name}-softmax.toml")
    assert setting_of(recipe) in SETTINGS[name]


def test_the_best_of_each_data_set_is_first() -> None:
    rows = [
        Row("b", Setting(0.1, None, 1), 0.5),
        Row("a", Setting(0.1, 0.01, 1), 0.1),
        Row("a", Setting(0.2, 0.01, 1), 0.2),
    ]
    cells = [line.split(" | ") for line in table(rows).splitlines()[2:]]
    assert [(row[0], row[1], row[2]) for row in cells] == [
        ("| a", "0.2", "0.01"),
        ("| a", "0.1", "0.01"),
        ("| b", "0.1", "none"),
    ]
