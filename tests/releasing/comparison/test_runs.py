"""The runs of a comparison: methods, λ, seeds and the recipe of each."""

from __future__ import annotations

from evergram.releasing.comparison.runs import Run, recipe_of, runs_of, seeds_of, sweep_of
from evergram.training.recipe import Recipe
from evergram.training.recipe.methods import METHODS


def recipe(*overrides: str) -> Recipe:
    values = {"data": {"kind": "synthetic"}, "compare": {"methods": ["bc-aligner", "non-bc"]}}
    return Recipe.of(values, overrides)


def test_keep_all_comes_first_and_each_run_once() -> None:
    assert [run.name for run in runs_of(recipe())] == ["keep-all", "bc-aligner", "non-bc"]
    named = recipe('compare.methods=["non-bc", "keep-all"]')
    assert [run.name for run in runs_of(named)] == ["keep-all", "non-bc"]


def test_a_sweep_has_a_run_for_each_other_weight() -> None:
    swept = recipe("compare.lambdas=[16, 1, 4.5]", 'compare.lambda_methods=["bc-aligner"]')
    # λ = 16 is the method's own.
    assert [(w, run.name) for w, run in sweep_of(swept)["bc-aligner"].items()] == [
        (1, "bc-aligner-lambda-1"),
        (4.5, "bc-aligner-lambda-4.5"),
        (16, "bc-aligner"),
    ]
    assert len(runs_of(swept)) == 5
    assert sweep_of(recipe()) == {}


def test_only_methods_that_leave_the_model_as_it_is_share_keep_alls() -> None:
    shared = [name for name in METHODS if Run(name).shares_models]
    assert shared == ["non-bc", "post-lin-sloss", "post-lin-mloss", "post-closed"]


def test_a_number_of_seeds_starts_at_the_recipes() -> None:
    assert list(seeds_of(recipe("seed=5", "compare.seeds=3"))) == [5, 6, 7]
    assert list(seeds_of(recipe("seed=5", "compare.seeds=[9, 2]"))) == [9, 2]


def test_a_methods_settings_win_over_those_of_the_recipe() -> None:
    other = recipe("upgrade.transform=affine", "upgrade.held_out=0.2", "training.metric=recall@50")
    chosen = recipe_of(other, Run("post-lin-mloss", 2.0), 7, "paper")
    upgrade = chosen.upgrade
    assert (upgrade.fit, upgrade.transform, upgrade.steps) == ("posthoc", "linear", "multi")
    assert (upgrade.weight, upgrade.held_out, upgrade.alone) == (2.0, 0.2, False)
    assert (chosen.seed, chosen.split.selection) == (7, "paper")
    assert "recall@50" in chosen.metrics


def test_what_goes_on_from_the_model_before_has_half_of_the_epochs() -> None:
    paper = recipe("training.epochs=500")
    epochs = {name: recipe_of(paper, Run(name), 0, "paper").training.epochs for name in METHODS}
    assert epochs.pop("finetune-m0") == 250
    assert set(epochs.values()) == {500}
    assert recipe_of(recipe("training.epochs=1"), Run("finetune-m0"), 0, "paper").training.epochs
