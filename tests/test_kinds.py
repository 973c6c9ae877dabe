"""Tables of kinds, and the recipe's tables that are made of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, create_model

from evergram.compatibility.kinds import TRANSFORMS
from evergram.encoders.encoder import Encoder
from evergram.encoders.kinds import ENCODERS, EncoderSettings
from evergram.errors import RecipeError
from evergram.gramian.estimator import GramianEstimator
from evergram.gramian.kinds import ESTIMATORS, BatchEstimatorSettings, SOGramSettings
from evergram.kinds import Kinds, Needs, Trait, kind_of
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import AdaptiveTraining

ROOT = Path(__file__).parents[1]
BASE: dict[str, Any] = {"data": {"kind": "synthetic"}}
# What a kind cannot be chosen without.
NEEDED: dict[str, dict[str, Any]] = {
    "files": {"query": "/q.parquet", "candidate": "/c.parquet"},
    "given": {"data": {"kind": "table", "path": "a.csv", "test": "b.csv"}},
    "als": {"upgrade": {"method": "post-lin-mloss"}},
}
CHOSEN = [(table, kind) for table, kinds in Recipe.kinds.items() for kind in kinds]


class WindowSettings(BatchEstimatorSettings):
    kind: Literal["window"] = "window"
    batches: int = 4

    def build(self, *_: Any) -> GramianEstimator:
        raise NotImplementedError


def test_a_kind_is_chosen_by_its_name_and_stored_with_every_key_of_its_own() -> None:
    for table, kind in CHOSEN:
        kinds = Recipe.kinds[table]
        assert re.fullmatch(r"[a-z][a-z0-9_-]{0,63}", kind)
        own = {"path": "a.csv"} if "path" in kinds[kind].model_fields else {}
        own |= NEEDED["files"] if kind == "files" else {}
        more = {} if kind == "files" else NEEDED.get(kind, {})
        values: dict[str, Any] = {**BASE, "task": {"penalty": 1.0}, **more}
        values[table] = {**values.get(table, {}), kinds.chooser: kind, **own}
        recipe = Recipe.of(values)
        assert getattr(getattr(recipe, table), kinds.chooser) == kind
        stored = json.loads(json.dumps(recipe.model_dump(mode="json")))
        assert stored[table].keys() == type(getattr(recipe, table)).model_fields.keys()
        assert Recipe.of(stored) == Recipe.stored(stored) == recipe


def test_a_key_of_another_kind_is_refused_and_its_users_are_named() -> None:
    for table, kinds in Recipe.kinds.items():
        every = {key for settings in kinds.every() for key in settings.model_fields}
        for kind, settings in kinds.items():
            for key in every - settings.model_fields.keys():
                values = {**BASE, "task": {"penalty": 1.0}, **NEEDED.get(kind, {})}
                values[table] = {kinds.chooser: kind, key: None}
                with pytest.raises(RecipeError) as refused:
                    Recipe.of(values)
                users = [name for name, other in kinds.items() if key in other.model_fields]
                named = [f"{table}.{key} is used only with {table}.{kinds.chooser} = "]
                assert all(text in str(refused.value) for text in [*named, *map(repr, users)])


def test_a_recipe_is_checked_without_torch() -> None:
    """Commands read recipes to answer at once, also to report a typing error."""
    recipes = [str(path) for path in sorted((ROOT / "recipes").glob("*.toml"))]
    code = (
        "import sys\nfrom evergram.training.recipe import Recipe\n"
        f"for path in {recipes!r}: Recipe.load(path)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_kind_that_is_added_is_allowed_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match=r"gramian\.kind is 'window'; it must be one of 'exact'"):
        Recipe.of(BASE, ["gramian.kind=window"])
    before = Recipe.of(BASE).model_dump()
    monkeypatch.setitem(ESTIMATORS, "window", WindowSettings)
    recipe = Recipe.of(BASE, ["gramian.kind=window", "gramian.batches=7"])
    assert recipe.gramian == WindowSettings(batches=7)
    with pytest.raises(RecipeError, match=r"gramian\.batches is 'x'; it must be an integer"):
        Recipe.of(BASE, ["gramian.kind=window", "gramian.batches=x"])
    with pytest.raises(RecipeError, match=r"gramian\.batches is used only with .* = 'window'"):
        Recipe.of(BASE, ["gramian.batches=7"])
    # What was stored without it is read with it, and is the same.
    assert Recipe.of(before) == Recipe.stored(before) == Recipe.of(BASE)


def test_a_new_setting_is_one_line_in_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its type, its default, what it needs, its place in the schema, in errors and on disk."""
    key = Annotated[float, Field(gt=0), Needs(Trait.UNIT_ROWS)]
    fields: Any = {"margin": (key, 0.5), "optimizer": (Literal["careful"], "careful")}
    careful = create_model("CarefulTraining", __base__=AdaptiveTraining, **fields)
    monkeypatch.setitem(Recipe.kinds["training"], "careful", careful)
    chosen = ["training.optimizer=careful", "model.normalize=true"]
    recipe = Recipe.of(BASE, [*chosen, "training.margin=0.7"])
    assert recipe.training.model_dump()["margin"] == 0.7
    assert Recipe.stored(recipe.model_dump(mode="json")) == recipe
    for wrong, named in (
        ([*chosen, "training.margin=-1"], r"training\.margin is -1; .* greater than 0"),
        (["training.margin=0.7"], r"training\.margin is used only with .* = 'careful'"),
        ([chosen[0], "training.margin=0.7"], r"training\.margin is 0\.7, which needs rows of unit"),
    ):
        with pytest.raises(RecipeError, match=named):
            Recipe.of(BASE, wrong)
    assert "training.margin" in Recipe.key_types()
    assert '"margin"' in json.dumps(Recipe.model_json_schema())


def test_a_kind_of_the_package_is_not_replaced_and_a_class_says_its_name() -> None:
    table = Kinds("gramian", ESTIMATORS.values())

    class Mine(SOGramSettings):
        kind: Literal["mine"] = "mine"  # type: ignore[assignment]

    with pytest.raises(RecipeError, match=r"'sogram' is the built-in SOGramSettings; give Mi"):
        table["sogram"] = Mine
    table["sogram"] = ESTIMATORS["sogram"]
    table["mine"] = Mine
    table["mine"] = Mine  # as a cell of a notebook that is run again
    assert (table["mine"], kind_of(Mine)) == (Mine, "mine")
    with pytest.raises(RecipeError, match=r"as 'other'; add kind: Literal\['other'\]"):
        table["other"] = Mine
    with pytest.raises(ValueError, match="share a name"):
        Kinds("gramian", (SOGramSettings, SOGramSettings))


def test_an_encoder_that_is_passed_in_python_has_no_size_in_the_recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Handed(EncoderSettings):
        kind: Literal["handed"] = "handed"
        made_by_recipe = False

        @classmethod
        def encoder_class(cls) -> type[Encoder]:
            raise NotImplementedError

    monkeypatch.setitem(ENCODERS, "handed", Handed)
    assert Recipe.of(BASE, ["model.kind=handed"]).model == Handed()
    with pytest.raises(RecipeError, match=r"model\.dim is \[8\], which needs an encoder built"):
        Recipe.of(BASE, ["model.kind=handed", "model.dim=8"])


def test_a_transforms_name_is_short_for_its_table() -> None:
    short = Recipe.of(BASE, ["upgrade.transform=low_rank", "upgrade.rank=4"])
    long = Recipe.of(BASE, ["upgrade.transform={kind='low_rank', rank=4}"])
    assert short.upgrade == long.upgrade
    assert short.upgrade.transform == TRANSFORMS["low_rank"].model_validate({"rank": 4})
    with pytest.raises(RecipeError, match=r"upgrade\.rank is only used .* = 'low_rank'"):
        Recipe.of(BASE, ["upgrade.rank=4"])
