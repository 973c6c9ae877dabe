"""A frozen upgrade refuses a recipe of another model than the one that it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_training import tiny_lineage, tiny_recipe

from evergram.errors import RecipeError
from evergram.lineage.lineage import Lineage
from evergram.releasing.frozen.kept_model import refuse_other_model
from evergram.releasing.upgrade import upgrade
from evergram.training.recipe import Recipe

FROZEN = ("upgrade.start=frozen", "upgrade.alone=false")


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return tiny_lineage(tmp_path_factory.mktemp("kept") / "lineage")


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (["model.dim=20"], r"version 0 .*: model\.dim is \[20\] here and \[4, 5, 3\] there\. Give"),
        (["model.kind=two_tower"], r"model\.kind is 'two_tower' here and 'factorization' there"),
        (["task.kind=bpr", "task.penalty=0.0"], r"task\.kind is 'bpr' here"),
        (["task.l2=0.2"], r"task\.l2 is 0\.2 here and 0\.1 there"),
        (["model.normalize=true", "model.popularity=0.1"], r"model\.popularity is 0\.1 here"),
    ],
)
def test_other_values_of_the_model_or_the_task_are_named(
    lineage: Lineage, overrides: list[str], names: str
) -> None:
    with pytest.raises(RecipeError, match=names):
        upgrade(tiny_recipe(*FROZEN, *overrides), lineage, progress=False)


def test_data_metrics_and_how_the_transform_is_made_may_differ(lineage: Lineage) -> None:
    recipe = tiny_recipe(*FROZEN, "data.interactions=1000", 'metrics=["recall@5"]')
    artefact = upgrade(recipe, lineage, progress=False)
    assert artefact.metrics["metrics"]["model"].keys() == {"recall@5"}


def test_an_automatic_power_of_counts_is_not_looked_for_in_a_frozen_upgrade(
    small: Recipe, tmp_path: Path
) -> None:
    """The joint alignment that needs a number is not trained either."""
    values: dict[str, Any] = {
        **small.model_dump(include={"name", "data", "split"}),
        "model": {"dim": 4, "normalize": True, "popularity": "auto"},
        "task": {"kind": "softmax_all"},
        "training": {"epochs": 1},
    }
    kept = Recipe.of(values)
    refuse_other_model(Recipe.of(values, FROZEN), kept.model_dump(mode="json"), 3)
    other = Recipe.of(values, [*FROZEN, "model.popularity=0.1"])
    with pytest.raises(RecipeError, match=r"version 3 .*model\.popularity is 0\.1 here and 'auto'"):
        refuse_other_model(other, kept.model_dump(mode="json"), 3)
