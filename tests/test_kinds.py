"""Tables of kinds, and the recipe's tables that are made of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from evergram.compatibility.kinds import TRANSFORMS
from evergram.encoders.encoder import Encoder
from evergram.encoders.kinds import ENCODERS, EncoderSettings
from evergram.errors import RecipeError
from evergram.gramian.estimator import GramianEstimator
from evergram.gramian.kinds import ESTIMATORS, EstimatorSettings, SOGramSettings
from evergram.kinds import Kinds, KindSettings, table_of
from evergram.tasks.kinds import TASKS
from evergram.training.priors.kinds import PRIORS
from evergram.training.recipe import GramianRecipe, Recipe
from evergram.training.recipe.used_keys import KIND_TABLES

ROOT = Path(__file__).parents[1]
TABLES: dict[str, dict[str, Any]] = {
    "model": ENCODERS,
    "task": TASKS,
    "prior": PRIORS,
    "gramian": ESTIMATORS,
    "upgrade": TRANSFORMS,
}
EVERY = [(table, kind) for table, kinds in TABLES.items() for kind in kinds]
BASE = {"data": {"kind": "synthetic"}}
# What a kind cannot be chosen without, by a recipe that penalises.
NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    ("prior", "files"): {"query": "/q.parquet", "candidate": "/c.parquet"},
    # Without rows to hash into, a seed of the hash is refused.
    ("model", "factorization"): {"hash_rows": 5},
    ("model", "two_tower"): {"hash_rows": 5},
    ("task", "softmax_all"): {"neighbour_share": 0.1},
}


def extra(table: str) -> dict[str, Any]:
    return {"penalty": 1.0} if table == "task" else {}


def test_a_kind_is_chosen_by_its_name_with_every_key_of_its_own() -> None:
    for table, kind in EVERY:
        settings: type[KindSettings] = TABLES[table][kind]
        assert settings.kind == kind
        assert re.fullmatch(r"[a-z][a-z0-9_]{0,63}", kind)
        own = NEEDED.get((table, kind), {})
        values = {**settings(**own).model_dump(), KIND_TABLES[table].chooser: kind}
        recipe = Recipe.of({**BASE, "task": {"penalty": 1.0}} | {table: values | extra(table)})
        assert getattr(recipe, table).chosen == settings(**own)
        stored = json.loads(json.dumps(recipe.model_dump(mode="json")))
        assert Recipe.stored(stored) == recipe


def test_a_key_of_another_kind_is_refused_and_its_users_are_named() -> None:
    for table, kind in EVERY:
        own = TABLES[table][kind].model_fields
        for other, settings in TABLES[table].items():
            for key in settings.model_fields.keys() - own.keys():
                value = {"query": "q", "candidate": "c"}.get(
                    key, settings.model_fields[key].default
                )
                chosen = {KIND_TABLES[table].chooser: kind, key: value, **extra(table)}
                chosen |= NEEDED.get((table, kind), {})
                with pytest.raises(RecipeError, match=rf"{table}\.{key} is used with .*{other}"):
                    Recipe.of({**BASE, "task": {"penalty": 1.0}} | {table: chosen})


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
    class WindowSettings(EstimatorSettings):
        kind = "window"
        batches: int = 4

        def build(self, *_: Any) -> GramianEstimator:
            raise NotImplementedError

    with pytest.raises(RecipeError, match=r"gramian\.kind is 'window'; it must be one of 'exact'"):
        Recipe.of(BASE, ["gramian.kind=window"])
    before = Recipe.of(BASE).model_dump()
    monkeypatch.setitem(ESTIMATORS, "window", WindowSettings)
    recipe = Recipe.of(BASE, ["gramian.kind=window", "gramian.batches=7"])
    assert recipe.gramian.chosen == WindowSettings(batches=7)
    with pytest.raises(RecipeError, match=r"gramian\.batches is 'x'; it must be a whole number"):
        Recipe.of(BASE, ["gramian.kind=window", "gramian.batches=x"])
    with pytest.raises(RecipeError, match=r"gramian\.batches is used with .* = 'window' only"):
        Recipe.of(BASE, ["gramian.batches=7"])
    # What was dumped or stored without it is read with it.
    assert Recipe.of(before).gramian.kind == Recipe.stored(before).gramian.kind == "sogram"
    assert GramianRecipe.of({"kind": "window"}).chosen == WindowSettings()
    assert type(recipe.gramian).of({"kind": "window"}).chosen == WindowSettings()
    monkeypatch.delitem(ESTIMATORS, "window")
    with pytest.raises(ValidationError):
        GramianRecipe.of({"kind": "window"})


class Untyped(KindSettings):
    kind = "untyped"
    width: Unknown  # type: ignore[name-defined] # noqa: F821


def test_a_kind_of_the_package_is_not_replaced_and_a_type_must_be_known() -> None:
    table = table_of(*ESTIMATORS.values())

    class Mine(SOGramSettings):
        kind = "mine"

    with pytest.raises(RecipeError, match=r"'sogram' is the package's own SOGramSettings; give Mi"):
        table["sogram"] = Mine
    assert table == ESTIMATORS
    table["sogram"] = ESTIMATORS["sogram"]
    table["mine"] = Mine
    table["mine"] = Mine  # as a cell of a notebook that is run again
    assert table["mine"] is Mine
    sentence = r"A key of Untyped has a type that tests\.test_kinds does not know; import"
    with pytest.raises(RecipeError, match=sentence):
        table_of(Untyped)
    others: Kinds[KindSettings] = table_of()
    with pytest.raises(RecipeError, match=sentence):
        others["untyped"] = Untyped


def test_an_encoder_that_is_passed_in_python_has_no_size_in_the_recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Handed(EncoderSettings):
        kind = "handed"
        made_by_recipe = False

        @classmethod
        def encoder_class(cls) -> type[Encoder]:
            raise NotImplementedError

    monkeypatch.setitem(ENCODERS, "handed", Handed)
    assert Recipe.of(BASE, ["model.kind=handed"]).model.chosen == Handed()
    with pytest.raises(RecipeError, match=r"model\.dim is used with .* is 'handed'"):
        Recipe.of(BASE, ["model.kind=handed", "model.dim=8"])
