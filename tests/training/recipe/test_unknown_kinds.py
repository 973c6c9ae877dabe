"""A stored recipe whose kinds this process does not know."""

from __future__ import annotations

import pytest

from evergram.errors import RecipeError
from evergram.training.recipe import Recipe
from evergram.training.recipe.unknown_kinds import (
    refuse_unknown_kinds,
    unknown_kinds,
    without_unknown_kinds,
)


def test_what_is_unknown_is_left_out_for_an_evaluation_and_nothing_else(small: Recipe) -> None:
    stored = small.model_dump(mode="json")
    assert unknown_kinds(stored) == {}
    assert without_unknown_kinds(stored) == stored
    refuse_unknown_kinds(stored, "version 0")
    theirs = {**stored, "gramian": {**stored["gramian"], "kind": "window", "batches": 3}}
    theirs["upgrade"] = {**stored["upgrade"], "transform": "diagonal"}
    theirs["task"] = {**stored["task"], "loss": "quartic"}
    assert unknown_kinds(theirs) == {
        "gramian.kind": "window",
        "upgrade.transform": "diagonal",
        "task.loss": "quartic",
    }
    read = Recipe.stored(without_unknown_kinds(theirs))
    assert read.split == small.split
    assert read.training == small.training
    assert read.model == small.model
    with pytest.raises(RecipeError, match=r"version 4 of films has .*'.*; call evergram\.diagnose"):
        refuse_unknown_kinds(theirs, "version 4 of films")
