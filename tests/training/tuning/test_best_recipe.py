"""A recipe that was written is the recipe that was read, with the values set in it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evergram.training.recipe import Recipe
from evergram.training.tuning.best_recipe import toml_of, write_best

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3))
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)


@given(st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES, max_size=3), max_size=4))
def test_toml_is_read_as_it_was_written(tables: dict[str, Any]) -> None:
    assert tomllib.loads(toml_of(tables)) == tables


def test_the_file_is_the_recipe_with_its_paths_and_the_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "recipes" / "mine.toml"
    source.parent.mkdir()
    source.write_text(
        '# mine\nname = "mine"\n[data]\nkind = "table"\npath = "pairs.csv"\n[model]\ndim = 8\n'
    )
    monkeypatch.chdir(tmp_path)
    best = tmp_path / "best.toml"
    write_best(best, source, ["model.dim=12", "task.penalty=0.25", "seed=3"])
    recipe = Recipe.load(best)
    assert recipe == Recipe.load(source, ["model.dim=12", "task.penalty=0.25", "seed=3"])
    assert recipe.data.path == str(source.parent / "pairs.csv")
    assert "comments of mine.toml are not kept" in best.read_text().splitlines()[0]


def test_a_key_that_a_choice_puts_out_of_use_is_left_out(tmp_path: Path) -> None:
    source, best = tmp_path / "a.toml", tmp_path / "best.toml"
    source.write_text('[data]\nkind = "synthetic"\n[model]\nkind = "two_tower"\nhidden = [8]\n')
    write_best(best, source, ["model.kind=factorization"])
    assert Recipe.load(best) == Recipe.load(source, ["model.kind=factorization"])
    assert "hidden" not in best.read_text()
