"""Pilots and searches choose by selection pairs alone, and go on where they were killed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from tests.support.fits import CPU, split_of

from evergram.atomic_files import file_lock
from evergram.data.corpus import Corpus
from evergram.data.split import RowPairs, Split
from evergram.errors import RecipeError, TrainingError
from evergram.tasks.kinds import LOSSES
from evergram.training import tuning
from evergram.training.fit import RunContext, ends_after, fit_encoder
from evergram.training.pilots import (
    LEAST_GAIN,
    PILOTS,
    Pilots,
    run_pilots,
)
from evergram.training.recipe import Recipe
from evergram.training.recipe.recipe import toml_of
from evergram.training.tuning import (
    LOCK,
    NAME,
    Tuned,
    default_ranges,
    parse_range,
    search_space,
    tune,
    with_values,
    write_best,
)

CONTEXT = RunContext(CPU)


def recipe_of(*overrides: str, **tables: Any) -> Recipe:
    values: dict[str, Any] = {
        "data": {"kind": "synthetic", "queries": 120, "candidates": 80, "interactions": 1200},
        "model": {"dim": 4},
        "training": {"epochs": 4, "patience": 2},
        **tables,
    }
    return Recipe.of(values, overrides)


OPEN = recipe_of()


@pytest.fixture(scope="module")
def split() -> Split:
    return split_of(OPEN)


def pairs_of(corpus: Corpus, rows: RowPairs) -> set[tuple[str, str]]:
    sides = (corpus.queries, corpus.candidates)
    query, candidate = (side.vocabulary.keys.to_pylist() for side in sides)
    pairs = zip(rows.query.tolist(), rows.candidate.tolist(), strict=True)
    return {(query[q], candidate[c]) for q, c in pairs if c >= 0}


def trained_pairs(split: Split) -> set[tuple[str, str]]:
    corpus = split.training
    return pairs_of(corpus, RowPairs(corpus.column("query"), corpus.column("candidate")))


def measured(
    monkeypatch: pytest.MonkeyPatch, value: Callable[[Recipe], float]
) -> list[tuple[Recipe, Split]]:
    """Let `value` stand for a pilot's metric. Return what pilots are given."""
    ran: list[tuple[Recipe, Split]] = []

    def fit(recipe: Recipe, split: Split, *_: Any) -> Any:
        ran.append((recipe, split))
        return SimpleNamespace(history=[{"recall@20": value(recipe)}])

    monkeypatch.setattr("evergram.training.pilots.fit_encoder", fit)
    return ran


def test_a_tenth_of_the_training_pairs_selects_pilots_and_is_not_trained_on(
    monkeypatch: pytest.MonkeyPatch, split: Split
) -> None:
    ran = measured(monkeypatch, lambda recipe: 0.5)
    run_pilots(OPEN, split, 0, CONTEXT)
    more = ran[0][1]
    assert len(more.training) == len(split.training) - len(split.training) // 10
    assert len(more.test) == 0
    selection = pairs_of(more.training, more.selection)
    before = pairs_of(split.training, split.selection)
    assert not selection & (trained_pairs(more) | pairs_of(split.training, split.test))
    assert selection <= before | trained_pairs(split)
    assert len(selection) > len(before)


def test_what_is_decided_already_needs_no_pilot(
    monkeypatch: pytest.MonkeyPatch, split: Split
) -> None:
    for overrides in (
        "task.l2=0.1 task.penalty=5.0",
        "training.budget=5.0",
        "training.epochs=2",
        "training.patience=0",
        "task.kind=bpr",
        "model.normalize=true",
    ):
        recipe = recipe_of(*overrides.split())
        assert run_pilots(recipe, split, 0, CONTEXT) == Pilots(recipe)
    monkeypatch.setattr("evergram.training.pilots.MOST_PAIRS", 100)
    assert run_pilots(OPEN, split, 0, CONTEXT) == Pilots(OPEN)


def test_settings_that_diverge_are_not_chosen_and_end_nothing_but_by_the_formula(
    monkeypatch: pytest.MonkeyPatch, split: Split
) -> None:
    def diverges(recipe: Recipe) -> float:
        if recipe != ran[0][0]:
            raise TrainingError("The loss is nan.")
        return 0.5

    ran = measured(monkeypatch, diverges)
    pilots = run_pilots(OPEN, split, 0, CONTEXT)
    assert (len(pilots.tried), pilots.recipe.task) == (1, ran[0][0].task)
    assert len(ran) == PILOTS
    ran.insert(0, (OPEN, split))
    with pytest.raises(TrainingError):
        run_pilots(OPEN, split, 0, CONTEXT)


def test_what_a_recipe_says_is_not_tried(monkeypatch: pytest.MonkeyPatch, split: Split) -> None:
    monkeypatch.setitem(LOSSES, "quartic", lambda score, target: (score - target) ** 4)
    measured(monkeypatch, lambda recipe: 0.5)
    for override, key, value in (
        ("task.l2=0.1", "l2", 0.1),
        ("task.l2=0.1", "l2_measure", "examples"),
        ("task.l2_measure=penalty", "l2_measure", "penalty"),
        ("training.table_rate=0.05", "table_rate", 0.05),
    ):
        recipe = recipe_of(override, "task.loss=quartic")
        tried = run_pilots(recipe, split, 0, CONTEXT).tried
        assert {pilot[key] for pilot in tried} == {value}
        assert len({pilot["penalty"] for pilot in tried}) > 1


def test_pilots_look_at_no_test_pair(split: Split) -> None:
    untested = replace(split, test=RowPairs.none())
    assert run_pilots(OPEN, untested, 0, CONTEXT) == run_pilots(OPEN, split, 0, CONTEXT)


def test_by_default_a_few_short_sweeps_choose_and_the_solver_trains(split: Split) -> None:
    pilots = run_pilots(OPEN, split, 0, CONTEXT)
    assert len(pilots.tried) == PILOTS
    assert {pilot["table_rate"] for pilot in pilots.tried} == {0.0}
    best = max(float(pilot["recall@20"]) for pilot in pilots.tried)
    chosen = pilots.recipe.task
    assert isinstance(chosen.penalty, list)
    settings = {"penalty": chosen.penalty[0], "l2": chosen.l2, "l2_measure": chosen.l2_measure}
    (value,) = (p["recall@20"] for p in pilots.tried if p.items() >= settings.items())
    assert float(value) >= best / LEAST_GAIN
    assert pilots.recipe.training.optimizer == "als"
    assert pilots.recipe.training.epochs == OPEN.training.epochs
    # A version that is aligned to the one before takes steps.
    assert run_pilots(OPEN, split, 1, CONTEXT).recipe.training.optimizer == "auto"
    limited = replace(CONTEXT, ends=ends_after(0))
    assert len(run_pilots(OPEN, split, 0, limited).tried) == 1
    ended = fit_encoder(pilots.recipe, split, 0, limited)
    assert (ended.optimizer, ended.ended, len(ended.history)) == ("als", "minutes", 1)


def test_a_recipe_that_says_how_to_step_is_trained_so(
    monkeypatch: pytest.MonkeyPatch, split: Split
) -> None:
    monkeypatch.setitem(LOSSES, "quartic", lambda score, target: (score - target) ** 4)
    ran = measured(monkeypatch, lambda recipe: 0.5)
    for override, tried_by in (
        ("training.optimizer=adaptive", {"als"}),
        ("training.table_rate=0.05", {"als"}),
        ("training.batch_size=64", {"als"}),
        ("gramian.kind=exact", {"als"}),
        # What the solver cannot minimise is tried by whole trainings.
        ("task.loss=quartic", {"auto"}),
    ):
        ran.clear()
        recipe = recipe_of(override)
        pilots = run_pilots(recipe, split, 0, CONTEXT)
        assert len(pilots.tried) == len(ran) == PILOTS
        assert {each.training.optimizer for each, _ in ran} == tried_by
        assert override == "task.loss=quartic" or pilots.recipe.training == recipe.training


def test_a_text_is_a_range_a_range_by_logarithm_or_choices() -> None:
    for text, expected in (
        ("model.dim=16..128", IntDistribution(16, 128)),
        ("a.b=log:.01..1e2", FloatDistribution(0.01, 100.0, log=True)),
        ("a.b=-2..1.5", FloatDistribution(-2, 1.5)),
        ("a.b = x, y", CategoricalDistribution(("x", "y"))),
    ):
        assert parse_range(text) == (text.partition("=")[0].strip(), expected)
    # Between integers, where the key takes numbers, it is a range of numbers.
    assert search_space(["task.penalty=log:1..100", "model.dim=8..16"], OPEN) == {
        "task.penalty": FloatDistribution(1, 100, log=True),
        "model.dim": IntDistribution(8, 16),
    }


def test_what_cannot_be_searched_is_refused_before_anything_trains(tmp_path: Path) -> None:
    for text in (
        *("model.dim", "=1..2", "a.b=", "a.b=2..1", "a.b=log:0..1", "a.b=log:1,2", "a.b=1,,2"),
        *("a.b=1,1", "a.b=one..2", "a.b=1..inf"),
    ):
        with pytest.raises(RecipeError, match=re.escape(text)):
            parse_range(text)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"over": ["model.dim=1..2", "model.dim=3,4"]}, "model.dim"),
        ({"over": ["model.dmi=1..2"]}, "model.dim"),
        ({"over": ["model.dim=0..8"]}, "model.dim=0"),
        ({"over": ["data.queries=10..20"]}, "data.queries"),
        ({"over": ["training.metric=map@10,ndcg@20"]}, "training.metric"),
    ]
    for settings, named in cases:
        with pytest.raises(RecipeError, match=re.escape(named)):
            search(tmp_path / "tuned", **settings)
    assert not (tmp_path / "tuned").exists()


def test_by_default_keys_that_the_recipe_uses_are_searched() -> None:
    unit = "model.normalize=true task.kind="
    for overrides, keys in (
        ("", "task.penalty task.l2 training.table_rate"),
        ("model.kind=two_tower", "task.penalty task.l2 training.table_rate training.layer_rate"),
        (f"{unit}softmax_all", "task.temperature task.push training.table_rate"),
    ):
        ranges = default_ranges(recipe_of(*overrides.split()))
        assert [text.partition("=")[0] for text in ranges] == keys.split()


OVER = ["task.penalty=log:.01..10", "model.dim=2..8"]


def search(folder: Path, recipe: Recipe | None = None, count: int = 3, **more: Any) -> Tuned:
    settings = {"over": OVER, "trials": count, "device": "cpu", "progress": False, **more}
    recipe = recipe or recipe_of("training.epochs=2", "training.patience=0")
    return tune(recipe, settings.pop("over"), folder, **settings)


def fake_fit(
    monkeypatch: pytest.MonkeyPatch, values: Callable[[Recipe], Sequence[float]]
) -> list[Split]:
    """Let the n-th of `values` stand for the metric after epoch n. Return the splits of trials."""
    seen: list[Split] = []

    def fit(recipe: Recipe, split: Split, _: int, context: RunContext) -> Any:
        seen.append(split)
        history: list[dict[str, float]] = []
        run: Any = None
        planned = values(recipe)
        for epoch, value in enumerate(planned, 1):
            history.append({"epoch": epoch, "recall@20": value})
            for callback in context.callbacks:
                callback.on_evaluation(run, history[-1])
            if any(callback.stop(run) for callback in context.callbacks):
                break
        best = max(history, key=lambda record: record["recall@20"])
        ended = "epochs" if len(history) == len(planned) else "pruned"
        return SimpleNamespace(history=history, best_epoch=best["epoch"], ended=ended, seconds=1.0)

    monkeypatch.setattr(tuning, "fit_encoder", fit)
    return seen


def timeless(tuned: Tuned) -> list[dict[str, Any]]:
    trials = sorted(tuned.as_json()["trials"], key=lambda trial: trial["number"])
    return [{**trial, "seconds": 0.0} for trial in trials]


def test_a_search_ranks_by_selection_and_goes_on_as_an_undisturbed_one(tmp_path: Path) -> None:
    whole = search(tmp_path / "whole", count=4)
    values = [trial.value for trial in whole.ranked]
    assert values == sorted(values, key=lambda value: -(value or 0))
    assert whole.best.value == max(whole.best.intermediate_values.values())
    assert with_values(whole.recipe, whole.best.params).model.dim == [
        whole.best.params["model.dim"]
    ]
    assert whole.ended == "trials"
    listed = [trial["number"] for trial in whole.as_json()["trials"]]
    assert listed == [trial.number + 1 for trial in whole.ranked]
    assert len({str(trial.params) for trial in whole.trials}) == 4
    parts = tmp_path / "parts"
    assert timeless(search(parts, count=2)) == timeless(whole)[:2]
    with (parts / NAME).open("a") as file:  # killed while it wrote
        file.write('{"op_code":')
    assert timeless(search(parts, count=4)) == timeless(whole)
    assert timeless(search(tmp_path / "other", recipe_of("seed=3"))) != timeless(whole)[:3]
    for recipe, over, problem in (
        (recipe_of("training.epochs=3"), OVER, "another recipe"),
        (None, OVER[:1], "keys or values"),
    ):
        with pytest.raises(RecipeError, match=problem):
            search(parts, recipe, 1, over=over)
    for text in ("x\n", '{"format": "other/1"}\n'):
        (parts / NAME).write_text(text)
        with pytest.raises(RecipeError, match=NAME):
            search(parts)


def test_proposals_are_in_their_ranges_follow_the_values_and_see_no_test_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = [*OVER, "training.batch_size=64,128"]
    recipe = recipe_of("training.epochs=1", "training.refit=true")
    seen = fake_fit(monkeypatch, lambda recipe: [1 / (1 + abs(recipe.model.dim_of(0) - 5))])
    one = search(tmp_path / "one", recipe, over=over, count=12)
    fake_fit(monkeypatch, lambda recipe: [1 / recipe.model.dim_of(0)])
    other = search(tmp_path / "other", recipe, over=over, count=12)
    assert [t.params for t in one.trials] != [t.params for t in other.trials]
    for trial, split in zip(one.trials, seen, strict=True):
        assert trial.params["model.dim"] in range(2, 9)
        assert 0.01 <= float(trial.params["task.penalty"]) <= 10
        assert trial.params["training.batch_size"] in ("64", "128")
        assert (len(split.test), len(split.selection) > 0) == (0, True)
        assert split.final is None or len(split.final().test) == 0
    over = ["model.dim=4", "task.kind=pointwise", "model.normalize=true"]
    best = search(tmp_path / "choices", count=1, over=over).as_json()["best"]
    assert best["values"] == {"model.dim": 4, "task.kind": "pointwise", "model.normalize": True}


def test_few_values_are_each_proposed_once_and_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_fit(monkeypatch, lambda recipe: [0.5])
    for over in (["model.dim=2..4", "training.epochs=2,3"], ["model.dim=log:2..7"]):
        tuned = search(tmp_path / str(len(over)), over=over, count=9)
        assert tuned.ended == "exhausted"
        assert len({str(t.params) for t in tuned.trials}) == len(tuned.trials) == 6


def test_a_trial_below_the_median_of_those_it_can_be_compared_with_is_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = ["model.dim=2..9000"]
    for last, state in (([0.1, 0.9], TrialState.PRUNED), ([0.3, 0.9], TrialState.COMPLETE)):
        values = iter([*([0.2 + n / 100, 0.5] for n in range(5)), last])
        fake_fit(monkeypatch, partial(lambda values, recipe: next(values), values))
        assert search(tmp_path / state.name, count=6, over=over).trials[5].state == state


def test_a_failed_trial_is_kept_and_ranked_last_and_an_interrupt_keeps_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = fit_encoder
    errors: dict[str, BaseException] = {"trial 1": TrainingError("The loss is nan.")}

    def failing(recipe: Recipe, split: Split, version: int, context: Any) -> Any:
        if context.title in errors:
            raise errors[context.title]
        return fit(recipe, split, version, context)

    monkeypatch.setattr(tuning, "fit_encoder", failing)
    with pytest.raises(TrainingError, match=r"Trial 1: The loss is nan"):
        search(tmp_path / "one", count=1)
    tuned = search(tmp_path / "one", count=2)
    assert [trial.state for trial in tuned.ranked] == [TrialState.COMPLETE, TrialState.FAIL]
    assert tuned.trials[0].user_attrs["error"] == "The loss is nan."
    errors = {"trial 2": KeyboardInterrupt()}
    tuned = search(tmp_path / "two")
    assert (tuned.ended, len(tuned.trials)) == ("interrupted", 1)
    errors = {"trial 1": KeyboardInterrupt()}
    with pytest.raises(TrainingError, match="It was interrupted"):
        search(tmp_path / "three")


def test_a_value_that_the_data_refuse_is_a_failed_trial(tmp_path: Path) -> None:
    tuned = search(tmp_path / "some", over=["task.sparse=none,weight"])
    assert [trial.state for trial in tuned.ranked] == [TrialState.COMPLETE, TrialState.FAIL]
    assert "'weight'" in tuned.ranked[1].user_attrs["error"]
    with pytest.raises(TrainingError, match=r"Trial 1: .*'weight'"):
        search(tmp_path / "none", over=["task.sparse=weight"])


def test_a_folder_has_one_search_at_a_time(tmp_path: Path) -> None:
    with (
        file_lock(tmp_path / LOCK),
        pytest.raises(RecipeError, match="Another process is searching"),
    ):
        search(tmp_path)


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
TOML_VALUES = SCALARS | st.lists(SCALARS, max_size=3)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)


@given(
    st.dictionaries(
        NAMES, TOML_VALUES | st.dictionaries(NAMES, TOML_VALUES, max_size=3), max_size=4
    )
)
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
    best, values = tmp_path / "best.toml", ["model.dim=12", "task.penalty=0.25", "seed=3"]
    write_best(best, source, values)
    recipe = Recipe.load(best)
    assert recipe == Recipe.load(source, values)
    assert recipe.data.model_dump()["path"] == str(source.parent / "pairs.csv")
    assert "mine.toml" in best.read_text().splitlines()[0]
