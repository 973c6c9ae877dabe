"""A search ranks trials by the selection pairs alone, and goes on where it was interrupted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evergram.data.split import Split
from evergram.errors import RecipeError, TrainingError
from evergram.releasing.upgrade import train
from evergram.training.fit import fit_encoder
from evergram.training.recipe import Recipe
from evergram.training.tuning import trials
from evergram.training.tuning.proposals import Trial
from evergram.training.tuning.trials import Tuned, tune

OVER = ["task.penalty=log:.01..10", "model.dim=2..8"]


def recipe_of(**sections: dict[str, Any]) -> Recipe:
    values: dict[str, Any] = {
        "data": {"kind": "synthetic", "queries": 120, "candidates": 80, "interactions": 1200},
        "model": {"dim": 4},
        "training": {"epochs": 2},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return Recipe.of(values)


def search(folder: Path, recipe: Recipe | None = None, count: int = 3, **more: Any) -> Tuned:
    settings = {"trials": count, "device": "cpu", "progress": False, **more}
    return tune(recipe or recipe_of(), more.pop("over", OVER), folder, **_without(settings, "over"))


def _without(settings: dict[str, Any], name: str) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if k != name}


def timeless(tuned: Tuned) -> list[Trial]:
    return [replace(trial, seconds=0.0) for trial in tuned.trials]


def test_the_best_by_selection_comes_first_and_its_values_are_in_the_recipe(tmp_path: Path) -> None:
    tuned = search(tmp_path)
    values = [trial.value for trial in tuned.ranked]
    assert len(values) == 3
    assert all(isinstance(value, float) for value in values)
    assert values == sorted(values, key=lambda value: -(value or 0))
    assert tuned.best.value == max(value for _, value in tuned.best.history)
    assert tuned.best_recipe.model.dim == [tuned.best.values["model.dim"]]
    assert tuned.ended == "trials"


def test_no_test_pair_reaches_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Split] = []
    fit = fit_encoder

    def watched(recipe: Recipe, split: Split, *rest: Any) -> Any:
        seen.append(split)
        trained = fit(recipe, split, *rest)
        assert trained.refit is None
        assert trained.test_queries == 0
        assert all(math.isnan(v) for v in trained.metrics["model"].values())
        return trained

    monkeypatch.setattr(trials, "fit_encoder", watched)
    search(tmp_path, recipe_of(training={"epochs": 1, "refit": True}), 2)
    assert [len(split.test) for split in seen] == [0, 0]
    assert all(len(split.selection) for split in seen)
    assert all(len(split.final().test) == 0 for split in seen if split.final)


def test_an_interrupted_search_proposes_what_an_undisturbed_one_would(tmp_path: Path) -> None:
    whole = search(tmp_path / "whole", count=6)
    first = search(tmp_path / "parts", count=2)
    assert timeless(first) == timeless(whole)[:2]
    assert timeless(search(tmp_path / "parts", count=6)) == timeless(whole)
    assert len({str(trial.values) for trial in whole.trials}) == 6


@pytest.mark.parametrize(
    ("recipe", "over", "problem"),
    [
        (recipe_of(training={"epochs": 3}), OVER, "another recipe (training.epochs changed)"),
        (recipe_of(), OVER[:1], "other keys or values"),
    ],
)
def test_a_folder_of_another_search_is_refused(
    tmp_path: Path, recipe: Recipe, over: list[str], problem: str
) -> None:
    search(tmp_path, count=1)
    with pytest.raises(RecipeError) as caught:
        search(tmp_path, recipe, 1, over=over)
    assert problem in str(caught.value)


def test_a_search_ends_when_all_values_were_tried(tmp_path: Path) -> None:
    tuned = search(tmp_path, over=["model.dim=3,5"], count=9)
    assert tuned.ended == "exhausted"
    assert sorted(str(trial.values["model.dim"]) for trial in tuned.trials) == ["3", "5"]


def test_a_failed_trial_is_kept_and_ranked_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = fit_encoder

    def failing(recipe: Recipe, split: Split, version: int, context: Any) -> Any:
        if context.title == "trial 1":
            raise TrainingError("The loss is nan.")
        return fit(recipe, split, version, context)

    monkeypatch.setattr(trials, "fit_encoder", failing)
    with pytest.raises(TrainingError, match=r"No trial .*: trial 1 failed: The loss is nan"):
        search(tmp_path, count=1)
    tuned = search(tmp_path, count=2)
    assert [trial.state for trial in tuned.ranked] == ["finished", "failed"]
    assert tuned.trials[0].error == "The loss is nan."


def test_a_search_without_time_has_no_best_trial(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the minutes were over"):
        search(tmp_path, minutes=1e-9)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_ends_with_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = fit_encoder

    def interrupted(recipe: Recipe, split: Split, version: int, context: Any) -> Any:
        if context.title == "trial 2":
            raise KeyboardInterrupt
        return fit(recipe, split, version, context)

    monkeypatch.setattr(trials, "fit_encoder", interrupted)
    tuned = search(tmp_path)
    assert (tuned.ended, len(tuned.trials)) == ("interrupted", 1)


@pytest.mark.parametrize(
    "key", ["data.queries=10..20", "training.metric=map@10,ndcg@20", "seed=1,2"]
)
def test_keys_that_trials_are_judged_by_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(RecipeError, match="judged differently"):
        search(tmp_path, over=[key])


@pytest.mark.parametrize("limits", [{"count": 0}, {"minutes": 0.0}, {"minutes": math.nan}])
def test_limits_that_allow_no_trial_are_refused(tmp_path: Path, limits: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="one trial or more"):
        search(tmp_path, **limits)


@pytest.mark.parametrize("over", ["log:0.007..0.2", "0.005,0.02"])
def test_ends_that_the_data_do_not_allow_are_refused_before_anything_trains(
    tmp_path: Path, over: str
) -> None:
    """Of some 80 candidates, none of which takes more than 0.007, no whole is made."""
    softmax = recipe_of(task={"kind": "softmax_all", "temperature": 0.2})
    words = r"The search over task.largest_share=0.00[57]: .* must be above 1/\d\d "
    with pytest.raises(RecipeError, match=words):
        search(tmp_path / "tuned", softmax, over=[f"task.largest_share={over}"])
    assert not (tmp_path / "tuned").exists()


def test_a_choice_that_needs_a_column_is_refused_without_it(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"over task.sparse=weight: .* no column 'weight'"):
        search(tmp_path / "tuned", over=["task.sparse=none,weight"])
    assert not (tmp_path / "tuned").exists()


def test_trials_are_counted_from_one_everywhere(tmp_path: Path) -> None:
    tuned = search(tmp_path, count=2)
    assert [trial.number for trial in tuned.trials] == [1, 2]
    assert [trial["number"] for trial in tuned.as_json()["trials"]] == [1, 2]


def test_choices_are_values_in_json(tmp_path: Path) -> None:
    over = ["model.dim=4", "task.kind=pointwise", "model.normalize=true"]
    best = search(tmp_path, count=1, over=over).as_json()["best"]
    assert best["values"] == {"model.dim": 4, "task.kind": "pointwise", "model.normalize": True}


def test_a_trial_that_chooses_its_power_of_counts_has_the_value_that_train_publishes(
    tmp_path: Path,
) -> None:
    recipe = recipe_of(
        model={"normalize": True, "popularity": "auto"},
        task={"kind": "softmax_all", "temperature": 0.5},
        training={"refit": False, "metric": "ndcg@10", "epochs": 1, "table_rate": 1e-4},
    )
    chosen, fixed = (
        search(tmp_path / value, recipe, 1, over=[f"model.popularity={value}"]).best
        for value in ("auto", "0.0")
    )
    popularity = train(recipe, progress=False).metrics["training"]["popularity"]
    values = {tried["exponent"]: tried["ndcg@10"] for tried in popularity["tried"]}
    assert chosen.value == values[popularity["exponent"]] > values[0.0]
    assert fixed.value == values[0.0] == max(value for _, value in chosen.history)
