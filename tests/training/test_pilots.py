"""Pilots choose what a formula of the data's size cannot, and never look at a test pair."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evergram.data.corpus import Corpus
from evergram.data.row_pairs import RowPairs
from evergram.data.split import Split
from evergram.errors import TrainingError
from evergram.training.corpora import load_corpus, split_for
from evergram.training.expected_time import in_words
from evergram.training.fit import RunContext, Trained, ends_after, fit_encoder
from evergram.training.pilots import (
    LEAST_GAIN,
    MOST_PILOTS,
    PILOTS,
    Pilots,
    _with_more_selection,
    expected_time,
    run_pilots,
)
from evergram.training.recipe import Recipe

CONTEXT = RunContext(torch.device("cpu"))


def thorough(**sections: dict[str, Any]) -> Recipe:
    return recipe_of(**{**sections, "training": {"thorough": True, **sections.get("training", {})}})


def recipe_of(**sections: dict[str, Any]) -> Recipe:
    values: dict[str, Any] = {
        "data": {"kind": "synthetic", "queries": 300, "candidates": 200, "interactions": 3000},
        "model": {"dim": 8},
        "training": {"epochs": 4, "patience": 2},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return Recipe.of(values)


def split_of(recipe: Recipe) -> Split:
    return split_for(recipe, load_corpus(recipe), 0)


def _settings(pilot: dict[str, Any]) -> tuple[Any, ...]:
    return pilot["penalty"], pilot["l2"], pilot["l2_measure"], pilot["table_rate"]


def test_a_tenth_of_the_training_pairs_selects_and_is_not_trained_on() -> None:
    split = split_of(recipe_of())
    more = _with_more_selection(split)
    assert len(more.training) == len(split.training) - len(split.training) // 10
    assert len(more.test) == 0

    def pairs(corpus: Corpus, rows: RowPairs | None = None) -> set[tuple[str, str]]:
        query, candidate = (
            entities.vocabulary.keys.to_pylist() for entities in (corpus.queries, corpus.candidates)
        )
        rows = rows or RowPairs(corpus.column("query"), corpus.column("candidate"))
        both = zip(rows.query.tolist(), rows.candidate.tolist(), strict=True)
        return {(query[q], candidate[c]) for q, c in both if c >= 0}

    selection, before = pairs(more.training, more.selection), pairs(split.training, split.selection)
    assert not selection & pairs(more.training)
    assert not selection & pairs(split.training, split.test)
    assert selection <= before | pairs(split.training)
    assert len(selection) > len(before)


def test_what_is_decided_already_needs_no_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    open_one = recipe_of()
    split = split_of(open_one)
    decided: list[dict[str, dict[str, Any]]] = [
        {"task": {"l2": 0.1, "penalty": 5.0}},
        {"training": {"budget": 5.0}},
        {"training": {"epochs": 2}},
        {"training": {"patience": 0}},
        {"prior": {"kind": "version"}},
        {"task": {"kind": "bpr"}},
        {"model": {"normalize": True}},
    ]
    for sections in decided:
        recipe = recipe_of(**sections)
        assert run_pilots(recipe, split, 0, CONTEXT) == Pilots(recipe)
    monkeypatch.setattr("evergram.training.pilots.MOST_PAIRS", 100)
    assert run_pilots(open_one, split, 0, CONTEXT) == Pilots(open_one)


def measured(monkeypatch: pytest.MonkeyPatch, value: Callable[[Recipe], float]) -> list[Recipe]:
    """Let `value` stand for a training's metric. Returns: the recipes that were trained."""
    ran: list[Recipe] = []

    def fit(recipe: Recipe, *_: Any) -> Any:
        ran.append(recipe)
        return SimpleNamespace(history=[{"recall@20": value(recipe)}])

    monkeypatch.setattr("evergram.training.pilots.fit_encoder", fit)
    return ran


def by_l2(recipe: Recipe) -> float:
    """Best far below the formula's l2 and at a large rate."""
    l2, rate = recipe.task.l2, recipe.training.table_rate
    assert isinstance(l2, float)
    assert isinstance(rate, float)
    return 1 / (1 + abs(math.log2(l2 / 1e-3)) + abs(math.log2(rate / 3)))


def test_thorough_pilots_climb_to_the_best_of_what_is_left_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = measured(monkeypatch, by_l2)
    recipe = thorough()
    pilots = run_pilots(recipe, split_of(recipe), 0, CONTEXT)
    assert len(ran) == len(pilots.tried) == MOST_PILOTS
    assert len({_settings(pilot) for pilot in pilots.tried}) == MOST_PILOTS
    assert by_l2(pilots.recipe) >= max(float(p["recall@20"]) for p in pilots.tried) / LEAST_GAIN
    assert by_l2(pilots.recipe) > max(float(p["recall@20"]) for p in pilots.tried[:16])
    for sections, key, value in (
        ({"task": {"l2": 0.1}}, "l2", 0.1),
        ({"task": {"l2": 0.1}}, "l2_measure", "examples"),
        ({"task": {"l2_measure": "penalty"}}, "l2_measure", "penalty"),
        ({"training": {"table_rate": 0.05}}, "table_rate", 0.05),
    ):
        tried = run_pilots(thorough(**sections), split_of(recipe), 0, CONTEXT).tried
        assert {pilot[key] for pilot in tried} == {value}
        assert len({pilot["penalty"] for pilot in tried}) > 1


def test_pilots_that_were_killed_go_on_after_the_last_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of()
    split = split_of(recipe)
    whole = run_pilots(recipe, split, 0, CONTEXT)
    # No test pair is looked at.
    empty = replace(split, test=RowPairs.none())
    assert run_pilots(recipe, empty, 0, CONTEXT) == whole
    ran: list[str] = []

    def dies(*args: Any) -> Trained:
        ran.append(args[3].title)
        if len(ran) == 4:
            raise KeyboardInterrupt
        return fit_encoder(*args)

    monkeypatch.setattr("evergram.training.pilots.fit_encoder", dies)
    context = replace(CONTEXT, folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_pilots(recipe, split, 0, context)
    assert run_pilots(recipe, split, 0, context) == whole
    assert ran == [f"train pilot {n} of at most 8" for n in (1, 2, 3, 4, 4, 5, 6, 7, 8)]
    assert run_pilots(recipe, split, 0, context) == whole
    assert len(ran) == 9


def test_settings_that_diverge_are_not_chosen_and_end_nothing_but_by_the_formula(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def diverges(recipe: Recipe) -> float:
        if recipe != ran[0]:
            raise TrainingError("The loss is nan.")
        return 0.5

    ran = measured(monkeypatch, diverges)
    recipe = thorough()
    pilots = run_pilots(recipe, split_of(recipe), 0, CONTEXT)
    assert len(pilots.tried) == 1
    # Sixteen starts; then a step of l2, λ and the rate each way, and the other measure.
    assert len(ran) == 16 + 7
    assert pilots.recipe == ran[0]
    ran.insert(0, recipe_of())
    with pytest.raises(TrainingError):
        run_pilots(recipe, split_of(recipe), 0, CONTEXT)


def test_by_default_a_few_short_sweeps_choose_and_the_solver_trains() -> None:
    recipe = recipe_of()
    split = split_of(recipe)
    pilots = run_pilots(recipe, split, 0, CONTEXT)
    assert len(pilots.tried) == PILOTS
    assert {pilot["table_rate"] for pilot in pilots.tried} == {0.0}
    best = max(pilots.tried, key=lambda pilot: float(pilot["recall@20"]))
    chosen = pilots.recipe.task
    assert isinstance(chosen.penalty, list)
    values = {_settings(pilot)[:3]: float(pilot["recall@20"]) for pilot in pilots.tried}
    value = values[chosen.penalty[0], chosen.l2, chosen.l2_measure]
    assert value >= float(best["recall@20"]) / LEAST_GAIN
    assert pilots.recipe.training.optimizer == "als"
    assert pilots.recipe.training.epochs == recipe.training.epochs
    assert fit_encoder(pilots.recipe, split, 0, CONTEXT).optimizer == "als"
    # A version that is aligned to the one before takes steps.
    assert run_pilots(recipe, split, 1, CONTEXT).recipe.training.optimizer == "auto"


def test_a_recipe_that_says_how_to_step_is_trained_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = measured(monkeypatch, lambda recipe: 0.5)
    split = split_of(recipe_of())
    steps: list[tuple[dict[str, dict[str, Any]], set[str]]] = [
        ({"training": {"optimizer": "adaptive"}}, {"als"}),
        ({"training": {"table_rate": 0.05}}, {"als"}),
        ({"training": {"batch_size": 64}}, {"als"}),
        ({"gramian": {"kind": "storm"}}, {"als"}),
        # What the solver cannot minimise is tried by whole trainings.
        ({"task": {"loss": "logistic"}}, {"auto"}),
    ]
    for sections, tried_by in steps:
        ran.clear()
        recipe = recipe_of(**sections)
        pilots = run_pilots(recipe, split, 0, CONTEXT)
        assert len(pilots.tried) == len(ran) == PILOTS
        assert {each.training.optimizer for each in ran} == tried_by
        if sections.get("task") is None:
            assert pilots.recipe.training == recipe.training


def test_a_limit_of_time_ends_the_pilots_but_for_the_first() -> None:
    recipe = recipe_of()
    split = split_of(recipe)
    pilots = run_pilots(recipe, split, 0, replace(CONTEXT, ends=ends_after(0)))
    assert len(pilots.tried) == 1
    ended = fit_encoder(pilots.recipe, split, 0, replace(CONTEXT, ends=ends_after(0)))
    assert (ended.ended, len(ended.history)) == ("minutes", 1)


def test_the_expected_time_grows_with_the_pilots_and_is_corrected_by_them() -> None:
    recipe = recipe_of()
    split = split_of(recipe)
    default, long = (expected_time(each, split) for each in (recipe, thorough()))
    assert 0 < default.pilots < long.pilots
    assert expected_time(recipe_of(training={"patience": 0}), split).pilots == 0
    assert default.left(0.5, default.pilots) == pytest.approx(default.pilots + 2 * default.training)
    assert [in_words(s) for s in (0.1, 1.4, 1.6, 44)] == [
        *["about a second"] * 2,
        "about 2 seconds",
        "about 40 seconds",
    ]
