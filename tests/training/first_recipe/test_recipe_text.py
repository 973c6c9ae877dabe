"""A first recipe is TOML, with values that fit the size of the data."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from evergram.training.first_recipe.recipe_text import Settings, dim_of, epochs_of, recipe_text
from evergram.training.first_recipe.survey import Survey

SURVEY = Survey(
    rows=50_000,
    queries=900,
    candidates=700,
    repeats=0,
    density=0.08,
    first_time=None,
    last_time=None,
    lowest_value=1.0,
    highest_value=5.0,
    held_out=100,
    unknown_queries=20,
    unknown_candidates=20,
)


@pytest.mark.parametrize(
    ("rows", "ids", "dim"),
    [(1_000, 500, 16), (50_000, 500, 32), (5_000_000, 500, 64), (10**8, 500, 128), (10**8, 9, 4)],
)
def test_more_data_gets_more_dims_and_few_ids_do_not(rows: int, ids: int, dim: int) -> None:
    assert dim_of(replace(SURVEY, rows=rows, candidates=ids)) == dim


def test_more_data_gets_fewer_epochs_and_more_than_patience() -> None:
    epochs = [epochs_of(replace(SURVEY, rows=rows)) for rows in (10**4, 10**7, 10**8)]
    assert epochs == sorted(epochs, reverse=True)
    assert epochs[0] > epochs[-1] > 10


@pytest.mark.parametrize("path", ["a.csv", 'o"dd\\\n\x7fname.csv', "/ab/ü.csv"])
def test_the_text_is_toml_with_a_comment_on_each_value_that_is_chosen(path: str) -> None:
    data = {"kind": "table", "path": path, "columns": {"query": 'a "b"'}}
    settings = Settings("shop", data, {"kind": "random", "share": 0.1}, 32, 100)
    text = recipe_text(settings, SURVEY)
    read = tomllib.loads(text)
    assert read["data"] == data
    assert read["model"]["dim"] == 32
    assert "# minimum_value = 5 " in text
    assert ("relative to this file" in text) == (not path.startswith("/"))


def test_many_unknown_ids_are_warned_of() -> None:
    settings = Settings("s", {"kind": "table", "path": "a"}, {"kind": "random"}, 8, 100)
    assert "two_tower" not in recipe_text(settings, SURVEY)
    assert "two_tower" in recipe_text(settings, replace(SURVEY, unknown_queries=40))
