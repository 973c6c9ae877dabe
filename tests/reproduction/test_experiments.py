"""Every experiment: its tiny preset runs and is shown, and its other presets are ready to run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from reproduction.catalogue import EXPERIMENTS
from reproduction.claims import judge
from reproduction.comparison.settings import Comparison
from reproduction.experiment import Experiment, Runs
from reproduction.report.drawing import draw
from reproduction.results import Result, path_of
from reproduction.run import jobs_of, run_all

from evergram.training import Progress

QUIET = Progress(quiet=True)


@cache
def tiny_results(source: str) -> tuple[Result, ...]:
    """Return the results of an experiment's tiny preset, trained once a process."""
    with TemporaryDirectory() as folder:
        jobs = jobs_of(EXPERIMENTS[source], "tiny", [0])
        made = tuple(run_all(jobs, Path(folder), QUIET))
        # What was half-done is removed with the result.
        assert {path.suffix for path in Path(folder).glob(f"{source}/tiny/*")} == {".json"}
        return made


def tiny_runs(experiment: Experiment, seeds: int = 1) -> Runs:
    """Return the runs of a tiny preset; more seeds are copies of the first."""
    made = [replace(r, seed=s) for s in range(seeds) for r in tiny_results(experiment.source)]
    return Runs(experiment.presets["tiny"].trainings, made)


@pytest.mark.long
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_tiny_preset_runs_and_is_shown(name: str) -> None:
    experiment = EXPERIMENTS[name]
    runs = tiny_runs(experiment)
    assert runs.seeds == [0]
    tables, panels = experiment.tables(runs), experiment.panels(runs)
    for table in tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.header)}
        assert not any("nan" in cell for row in table.rows for cell in row)
    for panel in panels:
        assert panel.horizontal
        assert panel.vertical
        for line in panel.lines:
            points = len(line.x) - line.steps
            assert [len(values) for values in line.values] == [points] * len(line.values)
    assert bool(panels) == (name.startswith("gramian") or "figure" in name)
    assert draw(panels).startswith("<svg") == bool(panels)


@pytest.mark.long
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_claim_has_a_margin_for_each_seed(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert experiment.claims
    for claim in experiment.claims:
        margins = judge(claim, tiny_runs(experiment)).margins
        assert {len(values) for values in margins.values()} == {1}
        # Three seeds with one figure leave no doubt about its sign, unless it is zero.
        judgement = judge(claim, tiny_runs(experiment, 3))
        margin = judgement.mean
        assert margin is not None
        expected = "confirmed" if margin > 0 else "refuted" if margin < 0 else "not separable"
        assert judgement.verdict == ("not tested" if judgement.reason else expected)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_recipe_of_a_preset_is_a_recipe(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert experiment.presets.keys() >= {"tiny", "small"}
    for preset in experiment.presets:
        jobs = jobs_of(experiment, preset, [0], Path("data"))
        for job in jobs:
            recipe = job.recipe()  # refuses a key that changes nothing
            if isinstance(recipe, Comparison):
                assert recipe.weight == 16
                recipe = recipe.base
            assert recipe.training.patience == 0
            if name.startswith("gramian"):
                assert recipe.training.refit is False
                assert recipe.task.l2 == 0
        assert len({job.key for job in jobs}) == len(jobs)
        paths = {path_of(Path(), j.experiment, preset, j.training.label, 0) for j in jobs}
        assert len(paths) == len(jobs), "two trainings would be kept in one file"
