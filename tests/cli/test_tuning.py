"""`evergram tune` prints trials best first, and writes a recipe only if one has finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Command

from evergram.training.fit import fit_encoder
from evergram.training.recipe import Recipe
from evergram.training.tuning import trials

RECIPE = """
[data]
kind = "synthetic"
queries = 120
candidates = 80
interactions = 1200
[model]
dim = 4
[training]
epochs = 2
"""
QUICK = ("--device", "cpu", "--trials", 2)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return path


def test_tune_prints_trials_and_writes_a_recipe_that_train_takes(
    evergram: Command, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tuned"
    search = ("tune", recipe, "--over", "model.dim=2..6", "--out", out, "--seed", 3, *QUICK)
    ran = evergram(*search)
    assert ran.code == 0, ran.err
    assert "┃ dim ┃" in ran.out
    assert ran.out.count("finished") == 2
    facts = evergram.json(*search)
    values = [trial["value"] for trial in facts["trials"]]
    assert values == sorted(values, reverse=True)
    assert facts["ended"] == "trials"
    assert "model.dim" in Path(facts["picture"]).read_text()
    best = Recipe.load(out / "best.toml")
    assert best.model.dim == [facts["best"]["values"]["model.dim"]]
    assert best.seed == 3
    trained = evergram("train", out / "best.toml", "--lineage", tmp_path / "lineage")
    assert trained.code == 0, trained.err


def test_no_finished_trial_writes_no_recipe(
    evergram: Command, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tuned"
    search = ("tune", recipe, "--over", "model.dim=2..6", "--out", out, "--minutes", 1e-9)
    assert "No trial of the search has finished" in evergram.refused(*search)
    assert not (out / "best.toml").exists()


@pytest.mark.parametrize(
    ("over", "problem"),
    [
        ("model.dmi=1..2", "did you mean model.dim"),
        ("model.dim=8..2", "smaller end first"),
        ("data.queries=8..20", "judged differently"),
    ],
)
def test_a_search_that_cannot_be_is_refused(
    evergram: Command, recipe: Path, tmp_path: Path, over: str, problem: str
) -> None:
    assert problem in evergram.refused("tune", recipe, "--over", over, "--out", tmp_path / "tuned")


def test_without_keys_those_of_the_task_are_searched(
    evergram: Command, recipe: Path, tmp_path: Path
) -> None:
    facts = evergram.json("tune", recipe, "--out", tmp_path / "tuned", "--trials", 1)
    assert set(facts["best"]["values"]) == {"task.penalty", "task.l2", "training.table_rate"}


def test_ctrl_c_writes_the_best_recipe_and_has_its_exit_code(
    evergram: Command, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = fit_encoder

    def interrupted(recipe: Recipe, split: Any, version: int, context: Any) -> Any:
        if context.title == "trial 2":
            raise KeyboardInterrupt
        return fit(recipe, split, version, context)

    monkeypatch.setattr(trials, "fit_encoder", interrupted)
    out = tmp_path / "tuned"
    ran = evergram("tune", recipe, "--over", "model.dim=2..6", "--out", out, *QUICK)
    assert ran.code == 130
    assert "it was interrupted" in ran.out
    assert (out / "best.toml").is_file()


def test_a_search_of_few_values_ends_with_them(
    evergram: Command, recipe: Path, tmp_path: Path
) -> None:
    search = ("tune", recipe, "--over", "model.dim=2,4", "--out", tmp_path / "o", "--trials", 5)
    assert "All values of the search were tried" in evergram(*search).out
