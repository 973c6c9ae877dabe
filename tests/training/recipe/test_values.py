"""The values of a recipe before they are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evergram.errors import RecipeError
from evergram.training.recipe import Recipe
from evergram.training.recipe.values import (
    flat,
    overridden,
    override_keys,
    resolve_paths,
    written_keys,
)


def test_an_override_is_toml_or_a_bare_word_and_leaves_the_original_as_it_is() -> None:
    values: dict[str, Any] = {"model": {"dim": 8}}
    overrides = ["model.dim=[4, 8]", "model.kind=two_tower", "a.b.c=true", "name='x=y'"]
    assert overridden(values, overrides) == {
        "model": {"dim": [4, 8], "kind": "two_tower"},
        "a": {"b": {"c": True}},
        "name": "x=y",
    }
    assert values == {"model": {"dim": 8}}


@pytest.mark.parametrize("override", ["dim", "=3", "model..dim=3"])
def test_an_override_of_another_form_is_refused(override: str) -> None:
    with pytest.raises(RecipeError, match=r"is not of the form key\.path=value"):
        overridden({}, [override])


def test_a_value_has_no_keys_to_set() -> None:
    with pytest.raises(RecipeError, match="seed is a value, not a table"):
        overridden({"seed": 3}, ["seed.a=1"])


def test_override_keys_are_those_of_tables() -> None:
    overrides = ["gramian={kind='exact', rate=0.1}", "task.l2=0", "seed=1"]
    assert override_keys(overrides) == {"gramian.kind", "gramian.rate", "task.l2"}


def test_a_dumped_table_was_not_written_and_a_short_one_was() -> None:
    recipe = Recipe.of({"data": {"kind": "synthetic"}})
    model = Recipe.with_kinds()
    assert written_keys(recipe.model_dump(), model) == set()
    by_hand = {"data": {"kind": "synthetic"}, "model": {"dim": [8]}, "seed": 1}
    assert written_keys(by_hand, model) == {"data.kind", "model.dim"}


def test_paths_start_at_the_folder_or_at_that_of_the_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERGRAM_DATA", str(tmp_path / "sets"))
    values: dict[str, Any] = {
        "data": {"path": "ml", "metadata": "$EVERGRAM_DATA/beauty", "kind": "amazon"},
        "task": {"query_measure": [0.5, "weights.parquet"], "penalty": [1, 1]},
        "prior": {"query": str(tmp_path / "q.npy")},
    }
    resolve_paths(values, tmp_path / "recipes")
    assert values["data"]["path"] == str(tmp_path / "recipes" / "ml")
    assert values["data"]["metadata"] == str(tmp_path / "sets" / "beauty")
    assert values["task"]["query_measure"] == [0.5, str(tmp_path / "recipes/weights.parquet")]
    assert values["prior"]["query"] == str(tmp_path / "q.npy")


def test_flat_joins_names_by_dots() -> None:
    assert flat({"a": {"b": {"c": 1}, "d": [2]}, "e": {}}) == {"a.b.c": 1, "a.d": [2]}
