"""Pilots choose what a formula of the data's size cannot, and never look at a test pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evergram.data.corpus import Corpus
from evergram.data.row_pairs import RowPairs
from evergram.data.split import Split
from evergram.errors import TrainingError
from evergram.training.corpora import load_corpus, split_for
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


def test_the_best_by_the_selection_pairs_is_chosen() -> None:
    recipe = thorough()
    split = split_of(recipe)
    pilots = run_pilots(recipe, split, 0, CONTEXT)
    assert 8 <= len(pilots.tried) <= MOST_PILOTS
    values = {_settings(pilot): float(pilot["recall@20"]) for pilot in pilots.tried}
    assert len(values) == len(pilots.tried)
    settings, rate = pilots.recipe.task, pilots.recipe.training.table_rate
    assert isinstance(settings.penalty, list)
    assert isinstance(settings.l2, float)
    assert isinstance(rate, float)
    chosen = settings.penalty[0], settings.l2, settings.l2_measure, rate
    assert values[chosen] >= max(values.values()) / LEAST_GAIN
    # What it measured is what a training by these settings measures.
    again = fit_encoder(pilots.recipe, _with_more_selection(split), 0, CONTEXT)
    assert max(h["recall@20"] for h in again.history) == values[chosen]
    assert again.table_rate == rate


def test_a_tenth_of_the_training_pairs_selects_and_is_not_trained_on() -> None:
    split = split_of(recipe_of())
    more = _with_more_selection(split)
    assert len(more.training) == len(split.training) - len(split.training) // 10
    assert len(more.test) == 0

    def pairs(corpus: Corpus, rows: RowPairs) -> set[tuple[str, str]]:
        query, candidate = (
            entities.vocabulary.keys.to_pylist() for entities in (corpus.queries, corpus.candidates)
        )
        return {
            (query[q], candidate[c])
            for q, c in zip(rows.query.tolist(), rows.candidate.tolist(), strict=True)
            if c >= 0
        }

    def trained(corpus: Corpus) -> set[tuple[str, str]]:
        return pairs(corpus, RowPairs(corpus.column("query"), corpus.column("candidate")))

    selection = pairs(more.training, more.selection)
    assert not selection & trained(more.training)
    assert not selection & pairs(split.training, split.test)
    known = pairs(split.training, split.selection) | trained(split.training)
    assert selection <= known
    assert len(selection) > len(pairs(split.training, split.selection))


def test_no_test_pair_is_looked_at() -> None:
    recipe = recipe_of()
    split = split_of(recipe)
    empty = replace(split, test=RowPairs.none())
    assert run_pilots(recipe, split, 0, CONTEXT) == run_pilots(recipe, empty, 0, CONTEXT)


@pytest.mark.parametrize(
    "sections",
    [
        {"task": {"l2": 0.1, "penalty": 5.0}},
        {"training": {"budget": 5.0}},
        {"training": {"epochs": 2}},
        {"training": {"patience": 0}},
        {"prior": {"kind": "version"}},
        {"task": {"kind": "bpr"}},
        {"model": {"normalize": True}},
    ],
)
def test_what_is_decided_already_needs_no_pilot(sections: dict[str, dict[str, Any]]) -> None:
    recipe = recipe_of(**sections)
    assert run_pilots(recipe, split_of(recipe), 0, CONTEXT) == Pilots(recipe)


def test_pilots_that_were_killed_go_on_after_the_last_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = thorough()
    split = split_of(recipe)
    whole = run_pilots(recipe, split, 0, CONTEXT)
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
    assert ran[:5] == [f"train pilot {n} of at most 24" for n in (1, 2, 3, 4, 4)]
    done = len(ran)
    assert run_pilots(recipe, split, 0, context) == whole
    assert len(ran) == done


def test_large_data_goes_by_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergram.training.pilots.MOST_PAIRS", 100)
    recipe = recipe_of()
    assert run_pilots(recipe, split_of(recipe), 0, CONTEXT) == Pilots(recipe)


def test_only_what_is_left_open_is_tried() -> None:
    recipe = thorough(task={"l2": 0.1})
    pilots = run_pilots(recipe, split_of(recipe), 0, CONTEXT)
    assert {p["l2"] for p in pilots.tried} == {0.1}
    assert len({p["table_rate"] for p in pilots.tried}) > 1
    assert len({p["penalty"] for p in pilots.tried}) > 1
    assert pilots.recipe.task.l2 == 0.1
    assert {p["l2_measure"] for p in pilots.tried} == {"examples"}
    measured = thorough(task={"l2_measure": "penalty"})
    tried = run_pilots(measured, split_of(measured), 0, CONTEXT).tried
    assert {p["l2_measure"] for p in tried} == {"penalty"}
    fixed = thorough(training={"table_rate": 0.05})
    tried = run_pilots(fixed, split_of(fixed), 0, CONTEXT).tried
    assert {p["table_rate"] for p in tried} == {0.05}


def test_settings_that_diverge_are_not_chosen_and_end_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = thorough()
    first: list[Recipe] = []

    def diverges(candidate: Recipe, *rest: Any) -> Any:
        first.append(candidate)
        if candidate != first[0]:
            raise TrainingError("The loss is nan.")
        return fit_encoder(candidate, *rest)

    monkeypatch.setattr("evergram.training.pilots.fit_encoder", diverges)
    pilots = run_pilots(recipe, split_of(recipe), 0, CONTEXT)
    assert len(pilots.tried) == 1
    # Sixteen starts; then a step of l2, λ and the rate each way, and the other measure.
    assert len(first) == 16 + 7
    assert pilots.recipe == first[0]


def test_a_training_that_diverges_by_the_formula_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def diverges(*rest: Any) -> Any:
        raise TrainingError("The loss is nan.")

    monkeypatch.setattr("evergram.training.pilots.fit_encoder", diverges)
    recipe = recipe_of()
    with pytest.raises(TrainingError):
        run_pilots(recipe, split_of(recipe), 0, CONTEXT)


def test_sweeps_have_no_rate_to_try() -> None:
    recipe = recipe_of(training={"optimizer": "als"})
    pilots = run_pilots(recipe, split_of(recipe), 0, CONTEXT)
    assert len({_settings(pilot) for pilot in pilots.tried}) == len(pilots.tried) >= 8
    assert {pilot["table_rate"] for pilot in pilots.tried} == {0.0}


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


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"optimizer": "adaptive"}},
        {"training": {"table_rate": 0.05}},
        {"training": {"batch_size": 64}},
        {"gramian": {"kind": "storm"}},
    ],
)
def test_a_recipe_that_says_how_to_step_is_trained_so(sections: dict[str, dict[str, Any]]) -> None:
    recipe = recipe_of(**sections)
    pilots = run_pilots(recipe, split_of(recipe), 0, CONTEXT)
    assert len(pilots.tried) == PILOTS
    assert pilots.recipe.training == recipe.training


def test_what_the_solver_cannot_minimise_is_tried_by_whole_trainings() -> None:
    recipe = recipe_of(task={"loss": "logistic"})
    pilots = run_pilots(recipe, split_of(recipe), 0, CONTEXT)
    assert len(pilots.tried) == PILOTS
    assert len({pilot["table_rate"] for pilot in pilots.tried}) > 1
    assert pilots.recipe.training.optimizer == "auto"


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
