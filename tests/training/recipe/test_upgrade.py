"""The tables [upgrade] and [compare] of a recipe."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from evergram.training.recipe import Recipe
from evergram.training.recipe.methods import METHODS
from evergram.training.recipe.upgrade import CompareRecipe, UpgradeRecipe


@pytest.mark.parametrize("method", METHODS)
def test_a_method_names_settings_that_a_key_beside_it_overrides(method: str) -> None:
    settings = UpgradeRecipe(method=method)
    for key, value in METHODS[method].items():
        assert getattr(settings, key) == value
    assert UpgradeRecipe(method=method, steps="single").steps == "single"


def test_the_defaults_are_evergram_over_all_objects() -> None:
    settings = UpgradeRecipe()
    assert settings.objects == "all"
    named = UpgradeRecipe(method="evergram")
    assert settings.model_dump(exclude={"method"}) == named.model_dump(exclude={"method"})


@pytest.mark.parametrize(
    ("values", "weighs"),
    [
        ({}, True),
        ({"method": "bc-aligner", "transform": "orthogonal"}, True),
        ({"method": "post-closed"}, True),
        ({"method": "post-lin-sloss"}, False),
        ({"method": "non-bc"}, False),
    ],
)
def test_consumers_weigh_errors_where_something_is_fitted_by_them(
    values: dict[str, Any], weighs: bool
) -> None:
    settings = UpgradeRecipe.model_validate({**values, "consumer_weight": 0.5})
    assert settings.weighs_consumers == weighs
    assert UpgradeRecipe.model_validate(values).consumer_weight == 0


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"method": "best"}, "upgrade.method is 'best'; it must be one of keep-all"),
        ({"consumer_weight": 1.0}, "less than 1"),
        ({"consumers": ["ads", "ads"]}, "upgrade.consumers names a consumer twice"),
        (
            {"consumer_weight": 0.5, "transform": "orthogonal"},
            "'orthogonal' cannot be solved for with upgrade.consumer_weight = 0.5, linear and",
        ),
        ({"objects": "some"}, "Input should be 'all', 'paper-code' or 'batch'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        UpgradeRecipe.model_validate(values)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"methods": ["best"]}, "compare.methods has 'best'; a method is one of keep-all"),
        ({"methods": ["non-bc", "non-bc"]}, "names a method twice"),
        ({"seeds": [1, 1]}, "names a seed twice"),
        ({"lambdas": [1.0], "lambda_methods": ["non-bc"]}, "which has no λ; name joint methods"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        CompareRecipe.model_validate(values)


def test_every_joint_method_is_swept_unless_some_are_named() -> None:
    joint = [name for name, settings in METHODS.items() if settings["fit"] == "joint"]
    assert CompareRecipe(lambdas=[1.0]).lambda_methods == joint


@pytest.mark.parametrize(
    ("written", "solver"),
    [
        ({}, "closed"),
        ({"transform": "low_rank"}, "closed"),
        ({"transform": "residual_mlp"}, "gradient"),
        ({"solver": "gradient"}, "gradient"),
        ({"fit": "posthoc"}, "gradient"),
        ({"method": "bc-aligner"}, "gradient"),
        ({"method": "evergram"}, "closed"),
        ({"method": "joint-notrans"}, "gradient"),
        ({"method": "post-closed"}, "closed"),
        ({"method": "evergram", "solver": "gradient"}, "gradient"),
    ],
)
def test_joint_training_solves_for_its_transform_unless_something_else_is_written(
    written: dict[str, str], solver: str
) -> None:
    recipe = Recipe.of({"data": {"kind": "synthetic"}, "upgrade": written})
    assert recipe.upgrade.solver == solver
    # Read again as it is stored in a manifest, it stays what it was.
    assert Recipe.of(recipe.model_dump()).upgrade.solver == solver
