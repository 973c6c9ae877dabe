"""By default a search is over keys that the recipe uses."""

from __future__ import annotations

from typing import Any

import pytest

from evergram.training.recipe import Recipe
from evergram.training.tuning.default_space import default_space

DATA = {"data": {"kind": "synthetic"}}


def keys_of(sections: dict[str, Any]) -> list[str]:
    return [one.key for one in default_space(Recipe.of({**DATA, **sections})).ranges]


@pytest.mark.parametrize(("kind", "layers"), [("factorization", False), ("two_tower", True)])
def test_keys_that_the_recipe_uses_are_searched(kind: str, layers: bool) -> None:
    keys = keys_of({"model": {"kind": kind}})
    rates = ["training.table_rate", *["training.layer_rate"] * layers]
    assert keys == ["task.penalty", "task.l2", *rates]


@pytest.mark.parametrize(
    ("task", "keys"),
    [
        ("softmax_all", ["task.temperature", "task.push"]),
        # Its partition function is not weighed against the pairs.
        ("softmax_clustered", ["task.temperature"]),
    ],
)
def test_a_softmax_over_all_is_searched_by_its_temperature(task: str, keys: list[str]) -> None:
    sections = {"model": {"kind": "factorization", "normalize": True}, "task": {"kind": task}}
    assert keys_of(sections) == [*keys, "training.table_rate"]


def test_the_share_of_neighbours_is_searched_where_a_recipe_has_them() -> None:
    task = {"kind": "softmax_all", "neighbour_share": 0.1}
    sections = {"model": {"kind": "factorization", "normalize": True}, "task": task}
    assert keys_of(sections)[:3] == ["task.temperature", "task.push", "task.neighbour_share"]


def test_adams_rates_are_smaller() -> None:
    recipe = Recipe.of({**DATA, "training": {"optimizer": "adam"}})
    [rate] = [one for one in default_space(recipe).ranges if one.key == "training.table_rate"]
    assert (rate.low, rate.high) == (0.001, 0.1)
