"""A search ranks trials by the selection pairs alone, and goes on where it was interrupted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from evergram.data.split import Split
from evergram.errors import RecipeError, TrainingError
from evergram.releasing.upgrade import train
from evergram.training.checkpoints.run_identity import RunIdentity
from evergram.training.fit import fit_encoder
from evergram.training.recipe import Recipe
from evergram.training.tuning import SearchSpace, trials
from evergram.training.tuning.proposals import Trial
from evergram.training.tuning.trial_journal import LOCK, NAME, TrialJournal, claimed
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
    settings = {"over": OVER, "trials": count, "device": "cpu", "progress": False, **more}
    return tune(recipe or recipe_of(), settings.pop("over"), folder, **settings)


def timeless(tuned: Tuned) -> list[Trial]:
    return [replace(trial, seconds=0.0) for trial in tuned.trials]


def test_the_best_by_selection_comes_first_and_its_values_are_in_the_recipe(tmp_path: Path) -> None:
    tuned = search(tmp_path)
    values = [trial.value for trial in tuned.ranked]
    assert values == sorted(values, key=lambda value: -(value or 0))
    assert tuned.best.value == max(value for _, value in tuned.best.history)
    assert tuned.best_recipe.model.dim == [tuned.best.values["model.dim"]]
    assert tuned.ended == "trials"
    assert [trial["number"] for trial in tuned.as_json()["trials"]] == [1, 2, 3]
    for recipe, over, problem in (
        (recipe_of(training={"epochs": 3}), OVER, "training.epochs"),
        (recipe_of(), OVER[:1], "keys or values"),
    ):
        with pytest.raises(RecipeError, match=problem):
            search(tmp_path, recipe, 1, over=over)


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
    whole = search(tmp_path / "whole", count=4)
    first = search(tmp_path / "parts", count=2)
    assert timeless(first) == timeless(whole)[:2]
    assert timeless(search(tmp_path / "parts", count=4)) == timeless(whole)
    assert len({str(trial.values) for trial in whole.trials}) == 4


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


def test_what_cannot_be_searched_is_refused_before_anything_trains(tmp_path: Path) -> None:
    softmax = recipe_of(task={"kind": "softmax_all", "temperature": 0.2})
    cases: list[tuple[dict[str, Any], str]] = [
        ({"over": ["data.queries=10..20"]}, "judged differently"),
        ({"over": ["training.metric=map@10,ndcg@20"]}, "judged differently"),
        ({"count": 0}, "one trial or more"),
        ({"minutes": math.nan}, "one trial or more"),
        # Of some 80 candidates, none of which takes more than 0.007, no whole is made.
        ({"recipe": softmax, "over": ["task.largest_share=log:0.007..0.2"]}, "0.007"),
        ({"over": ["task.sparse=none,weight"]}, "task.sparse=weight"),
    ]
    for settings, named in cases:
        with pytest.raises(RecipeError, match=named):
            search(tmp_path / "tuned", **settings)
    assert not (tmp_path / "tuned").exists()


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


IDENTITY = RunIdentity("{}", "0", "corpus")


SPACE = SearchSpace.parse(["model.dim=2..8", "task.kind=pointwise,ranking"])


TRIALS = [
    Trial(0, {"model.dim": 3, "task.kind": "ranking"}, "finished", 0.1, 2, 1, 0.5, [(1, 0.1)]),
    Trial(1, {"model.dim": 4, "task.kind": "pointwise"}, "failed", error="The loss is nan."),
]


def test_trials_are_read_as_they_were_written(tmp_path: Path) -> None:
    journal = TrialJournal(tmp_path, IDENTITY, SPACE)
    for trial in TRIALS:
        journal.add(trial)
    assert TrialJournal(tmp_path, IDENTITY, SPACE).trials == TRIALS


@pytest.mark.parametrize("text", ["", '{"format": "other/1"}'])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(RecipeError, match="is no journal of trials"):
        TrialJournal(tmp_path, IDENTITY, SPACE)


def test_a_folder_has_one_search_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "tuned"
    refused = pytest.raises(RecipeError, match="Another process searches in")
    with claimed(folder), refused, claimed(folder):
        raise AssertionError("both search")
    assert not folder.exists()  # nothing was kept
    with claimed(folder):
        TrialJournal(folder, IDENTITY, SPACE).add(TRIALS[0])
    assert [path.name for path in folder.iterdir()] == [NAME]


def test_a_lock_is_gone_before_another_can_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed after it was released, it was another process's, and a third one took it, too."""
    release, there = FileLock.release, []

    def releasing(lock: FileLock, force: bool = False) -> None:
        there.append((tmp_path / LOCK).exists())
        release(lock, force)

    monkeypatch.setattr(FileLock, "release", releasing)
    with claimed(tmp_path):
        pass
    assert there[0] is False
