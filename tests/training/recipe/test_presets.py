"""A preset fills what a recipe leaves open; the documented differences are those of the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evergram.errors import RecipeError
from evergram.training.recipe import Recipe
from evergram.training.recipe.methods import METHODS
from evergram.training.recipe.presets import PAPER, with_preset
from evergram.training.recipe.values import flat

ROOT = Path(__file__).resolve().parents[3]
DATA: dict[str, Any] = {"data": {"kind": "synthetic"}}
DEFAULTS = flat(Recipe.of(DATA).model_dump(mode="json"))


def test_every_value_of_the_paper_is_that_of_the_recipe() -> None:
    values = flat(Recipe.of({"preset": "paper", **DATA}).model_dump(mode="json"))
    as_lists = {"task.penalty": [0.0]}
    for key, value in flat(PAPER).items():
        assert values[key] == as_lists.get(key, value), key
    of_method = {f"upgrade.{key}" for key in METHODS["bc-aligner"]}
    assert all(values[key] == METHODS["bc-aligner"][key.split(".")[1]] for key in of_method)
    others = values.keys() - flat(PAPER).keys() - of_method - {"preset"}
    assert {key: values[key] for key in others} == {key: DEFAULTS[key] for key in others}


def test_what_is_written_or_set_wins() -> None:
    written = {"preset": "paper", **DATA, "training": {"epochs": 60}, "metrics": ["map@10"]}
    recipe = Recipe.of(written, ["model.dim=8", "task.l2=0.1"])
    assert (recipe.training.epochs, recipe.training.batch_size) == (60, 2048)
    assert (recipe.metrics, recipe.model.dim, recipe.task.l2) == (["map@10"], [8], 0.1)
    assert Recipe.of(DATA, ["preset=paper"]).training.epochs == 500
    other = Recipe.of({"preset": "paper", **DATA, "upgrade": {"method": "evergram"}})
    assert (other.upgrade.solver, other.upgrade.objects) == ("closed", "paper-code")


def test_a_stored_recipe_keeps_what_it_was_trained_with() -> None:
    recipe = Recipe.of({"preset": "paper", **DATA, "training": {"epochs": 60}})
    values = recipe.model_dump(mode="json")
    assert Recipe.stored(values) == recipe
    # Had the preset been another one at that time, the stored values would still hold.
    values["upgrade"]["weight"] = 7.0
    assert Recipe.stored(values).upgrade.weight == 7.0


def test_a_preset_that_is_none_and_a_table_that_is_none_are_refused() -> None:
    with pytest.raises(RecipeError, match="preset is 'papr'; it must be 'paper'"):
        Recipe.of({"preset": "papr", **DATA})
    with pytest.raises(RecipeError, match="model"):
        Recipe.of({"preset": "paper", **DATA, "model": 3})
    assert with_preset({"preset": ["paper"]}) == {"preset": ["paper"]}


def test_the_recipe_of_the_paper_runs_its_methods_with_its_values() -> None:
    recipe = Recipe.load(ROOT / "recipes" / "table3-paper.toml")
    assert recipe.model.dim == [256, 320, 384, 448, 512]
    assert len(recipe.compare.methods) == 11


def test_the_documented_differences_are_those_of_the_code() -> None:
    rows = ["| key | default | [BC]'s code |", "|---|---|---|"]
    for key, value in flat(PAPER).items():
        if value != DEFAULTS[key] and [value] != DEFAULTS[key]:
            rows.append(f"| `{key}` | {_shown(DEFAULTS[key])} | {_shown(value)} |")
    text = (ROOT / "docs" / "compare.md").read_text()
    table = text.split("<!-- paper-preset -->\n")[1].split("\n<!-- end paper-preset -->")[0]
    assert table == "\n".join(rows)


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    return "" if value is None else f"`{json.dumps(value)}`"
