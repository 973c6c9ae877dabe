"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command import every_command

from evergram.cli.options import (
    columns_by_role,
    columns_of,
    load_recipe,
    refuse_unread,
    stores_by_side,
    with_seed,
)
from evergram.errors import DataError, RecipeError


def test_every_command_has_an_answer_for_machines() -> None:
    for name, command in every_command().items():
        assert "--json" in {option for each in command.params for option in each.opts}, name


def test_the_seed_wins_over_overrides_before_it(shop: Path) -> None:
    assert with_seed(["seed=1"], 7) == ["seed=1", "seed=7"]
    assert with_seed(None, None) == []
    recipe = load_recipe(Path("shop.toml"), 7, ["seed=1", "model.dim=9"])
    assert (recipe.seed, recipe.model.dim) == (7, [9])


@pytest.mark.parametrize("override", ["upgrade.rank=3", "upgrade=1", "seed = 3", "model.dim=4"])
def test_an_override_that_the_command_does_not_read_is_refused(override: str) -> None:
    unread = ("upgrade", "seed", "model.dim")
    with pytest.raises(RecipeError, match=f"^--set {override} changes nothing here") as refusal:
        refuse_unread(["task.penalty=1", override], unread)
    assert f"does not read {override.split('=')[0].strip()}; leave it out" in str(refusal.value)


def test_an_override_whose_name_begins_alike_is_read() -> None:
    refuse_unread(["upgrades.rank=3", "model.dims=4", "model=4"], ("upgrade", "model.dim"))
    refuse_unread(None, ("upgrade",))


def test_an_override_that_makes_the_recipe_valid_is_read(shop: Path) -> None:
    """Without an epoch no transform can be learned; the sentence that says so names the remedy."""
    start = ["training.epochs=0", "model.start=svd"]
    with pytest.raises(RecipeError, match=r"set upgrade\.fit = 'posthoc' or 'none'"):
        load_recipe(Path("shop.toml"), None, start, unread=("upgrade",))
    remedied = [*start, "upgrade.fit=none"]
    assert load_recipe(Path("shop.toml"), None, remedied, unread=("upgrade",)).upgrade.fit == "none"
    with pytest.raises(RecipeError, match=r"upgrade\.fit=none changes nothing here"):
        load_recipe(Path("shop.toml"), None, ["upgrade.fit=none"], unread=("upgrade",))


def test_columns_have_the_names_of_the_options_or_their_defaults() -> None:
    files = [Path("a.npy"), Path("b.parquet")]
    assert columns_of(files, None, None) == {"id_column": "id", "vector_column": "vector"}
    assert columns_of(files, "key", "v") == {"id_column": "key", "vector_column": "v"}


def test_a_column_of_files_without_columns_is_refused() -> None:
    files = [Path("a.npy"), Path("b.NPY")]
    assert columns_of(files, None, None)["id_column"] == "id"
    with pytest.raises(DataError, match=r"^--vector-column was given, and a \.npy file names"):
        columns_of(files, None, "v")


def test_stores_are_sides_and_addresses() -> None:
    options = ["query=postgresql://db/films?sslmode=require#q", "candidate=lance:v#films"]
    assert stores_by_side(options) == {
        "query": "postgresql://db/films?sslmode=require#q",
        "candidate": "lance:v#films",
    }


@pytest.mark.parametrize(
    "option",
    ["secret", "=secret", "query=", "postgresql://a:secret@db?x=1", "a b=secret", "#a=secret"],
)
def test_a_store_in_another_form_is_refused_without_repeating_it(option: str) -> None:
    with pytest.raises(DataError, match=r"^--store must be SIDE=ADDRESS") as refusal:
        stores_by_side(["query=here", option])
    assert "secret" not in str(refusal.value)


def test_a_side_with_two_stores_is_refused() -> None:
    with pytest.raises(DataError, match="given twice for side 'query'; give each side once"):
        stores_by_side(["query=a", "query=b"])


def test_columns_by_role_are_roles_and_names() -> None:
    assert columns_by_role(None) == {}
    assert columns_by_role(["query=a=b", "time=when"]) == {"query": "a=b", "time": "when"}
    for options, problem in ((["query"], "it is ROLE=NAME"), (["time=a", "time=b"], "time twice")):
        with pytest.raises(DataError, match=problem):
            columns_by_role(options)
