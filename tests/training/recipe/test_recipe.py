"""A recipe is checked strictly, and its errors name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evergram.errors import RecipeError
from evergram.training.recipe import Recipe

ROOT = Path(__file__).parents[3]
GOOD: dict[str, Any] = {"data": {"kind": "synthetic"}}


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.stem)
def test_every_recipe_of_ours_is_a_recipe(path: Path) -> None:
    recipe = Recipe.load(path)
    assert recipe.name == path.stem
    # What a manifest keeps is a recipe again.
    assert Recipe.of(recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.dim=0", "model.dim is 0; it must be greater than 0"),
        ("model.dim=-3", "model.dim is -3"),
        ("model.dim=[8, 0]", "model.dim is 0"),
        (
            "model.dims=8",
            "key model.dims is unknown; allowed here are: kind, dim.*did you mean model.dim",
        ),
        ("modle.dim=8", "key modle is unknown; allowed here are: name, seed"),
        ("training.epochs=1.5", "training.epochs is 1.5; it must be a whole number"),
        ("training.epochs=true", "training.epochs is true; it must be a whole number"),
        ("task.penalty=-1.0", "task.penalty is -1.0"),
        ("task.penalty=nan", "task.penalty is nan; it must be"),
        ("gramian.kind=adam", "gramian.kind is 'adam'; it must be one of 'exact', 'sampled', 's"),
        ("gramian.rate=fast", "gramian.rate is 'fast'; it must be a number, or 'auto'"),
        ("gramian.beta=2", "gramian.beta is '2'; it must be one of '1/n' or '1'"),
        ("gramian.beta=1", "gramian.beta is used with gramian.kind = 'sagram' only, .* 'sogram'"),
        ("task.penalty=[1, 2]", "must be as long as"),
        ("task.query_measure=-1.0", "task.query_measure is -1.0; a power must be 0 to 16"),
        ("task.query_orthogonal=0.1", r"set model\.normalize"),
        ("model.popularity=0.1", r"model\.popularity is 0\.1, and rows .*; set model\.normalize"),
        ("model.popularity=auto", r"model\.popularity is 'auto', and rows that are free to grow"),
        ("model.popularity=2.0", "model.popularity is 2.0; it must be a number from -1 to 1, or"),
        ("model.popularity=some", "model.popularity is 'some'; it must be a number from -1 to 1"),
        ("prior.kind=files", r"needs prior\.query and prior\.candidate"),
        ("gramian.rate=0.0", "gramian.rate is 0.0; it must be greater than 0, or 'auto'"),
        ("training.metric=hits@3", "training.metric is 'hits@3'; it must be recall@K, ndcg@K or"),
        ("metrics=['recall@0']", "metrics is 'recall@0'; it must be recall@K"),
        ("metrics=[]", r"metrics is \[\]; it must be a list of at least 1"),
        ("metrics=['ndcg@99999999999']", "K from 1 to 999999"),
        ("model=3", "model is 3; it must be a table of names and values"),
        (
            "data.columns.quer=user",
            "key data.columns.quer is unknown; .*did you mean data.columns.query",
        ),
        ("data.columns.query=3", "data.columns.query is 3; it must be text"),
        (
            "compare.seeds=[-1]",
            r"compare.seeds is \[-1\]; it must be a list of which each is",
        ),
        ("split.versions=[0.9, 0.8]", "ascending"),
        ("split.kind=given", "data.test"),
        ("data.kind=movielens", "needs data.path"),
        ("data.shared_ids=true", "data.shared_ids is used with data.kind = 'table' only"),
        ("seed=-1", "seed is -1"),
        ("name='my films'", "name is 'my films'; a name is made of letters"),
        ("dim", "not of the form"),
    ],
)
def test_a_bad_key_or_value_is_named_in_one_sentence(override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        Recipe.of(GOOD, [override])
    assert "\n" not in str(caught.value)


def test_overrides_are_toml_or_bare_words() -> None:
    recipe = Recipe.of(GOOD, ["model.dim=[4, 8]", "name=shop", "task.penalty=2", "seed=7"])
    assert (recipe.name, recipe.seed, recipe.task.penalty) == ("shop", 7, [2.0])
    assert [recipe.model.dim_of(v) for v in range(4)] == [4, 8, 8, 8]


def test_paths_are_relative_to_the_recipe_and_overrides_to_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "r.toml").write_text('[data]\nkind = "movielens"\npath = "ml"\n')
    assert Recipe.load(tmp_path / "r.toml").data.path == str(tmp_path / "ml")
    moved = Recipe.load(tmp_path / "r.toml", ["data.path=ml"])
    assert moved.data.path == str(tmp_path / "elsewhere" / "ml")
    untouched = Recipe.load(tmp_path / "r.toml", ["seed=1"])
    assert untouched.data.path == str(tmp_path / "ml")


@pytest.mark.parametrize(
    ("text", "message"), [(None, "no recipe"), ("[data", "not TOML"), ("", "key data is missing")]
)
def test_a_file_that_is_no_recipe(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "r.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        Recipe.load(path)


def test_an_override_mends_a_table_of_the_wrong_type(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('seed = {a = 1}\n[data]\nkind = "synthetic"\n[model]\nkind = ["two_tower"]\n')
    with pytest.raises(RecipeError, match=r"seed is \{'a': 1\}; it must be a whole number"):
        Recipe.load(path)
    mended = Recipe.load(path, ["seed=3", "model.kind=two_tower"])
    assert (mended.seed, mended.model.kind) == (3, "two_tower")
