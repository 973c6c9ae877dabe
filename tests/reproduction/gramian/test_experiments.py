"""Every experiment: its tiny preset runs, and its other presets are ready to."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from reproduction.claims import judge
from reproduction.experiment import Experiment, Runs
from reproduction.gramian.rows import ROWS
from reproduction.report.drawing import draw
from reproduction.results import Result, path_of
from reproduction.row import experiments_of
from reproduction.run import jobs_of, run_all

from evergram.training import Progress

BY_NAME = experiments_of(ROWS)


@cache
def tiny_results(source: str) -> tuple[Result, ...]:
    """Return the results of an experiment's tiny preset, trained once a process."""
    with TemporaryDirectory() as folder:
        jobs = jobs_of(BY_NAME[source], "tiny", [0])
        return tuple(run_all(jobs, Path(folder), Progress(quiet=True)))


def tiny_runs(experiment: Experiment, seeds: int = 1) -> Runs:
    """Return the runs of a tiny preset; more seeds are copies of the first."""
    made = [replace(r, seed=s) for s in range(seeds) for r in tiny_results(experiment.source)]
    return Runs(experiment.presets["tiny"].trainings, made)


@pytest.mark.long
@pytest.mark.parametrize("name", BY_NAME)
def test_the_tiny_preset_runs_and_is_shown(name: str) -> None:
    experiment = BY_NAME[name]
    runs = tiny_runs(experiment)
    assert runs.seeds == [0]
    tables, panels = experiment.tables(runs), experiment.panels(runs)
    assert tables
    assert panels
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
    assert draw(panels).startswith("<svg")


@pytest.mark.long
@pytest.mark.parametrize("name", BY_NAME)
def test_each_claim_has_a_margin_for_each_seed(name: str) -> None:
    experiment = BY_NAME[name]
    assert experiment.claims
    for claim in experiment.claims:
        assert len(judge(claim, tiny_runs(experiment)).margins) == 1
        # Three seeds with one figure leave no doubt about its sign, unless it is zero.
        judgement = judge(claim, tiny_runs(experiment, 3))
        assert len(judgement.margins) == 3
        margin = judgement.margins[0]
        expected = "confirmed" if margin > 0 else "refuted" if margin < 0 else "not separable"
        assert judgement.verdict == expected


@pytest.mark.parametrize("name", BY_NAME)
def test_without_results_there_is_nothing_to_draw_and_nothing_is_measured(name: str) -> None:
    experiment = BY_NAME[name]
    empty = Runs(experiment.presets["small"].trainings, [])
    assert [judge(claim, empty).verdict for claim in experiment.claims] == ["not measured"] * len(
        experiment.claims
    )


@pytest.mark.parametrize(("name", "preset"), [(n, p) for n in BY_NAME for p in BY_NAME[n].presets])
def test_every_recipe_of_a_preset_is_a_recipe(name: str, preset: str) -> None:
    jobs = jobs_of(BY_NAME[name], preset, [0], Path("data"))
    for job in jobs:
        recipe = job.recipe()  # refuses a key that changes nothing
        assert recipe.training.patience == 0
        assert recipe.training.refit is False
        assert recipe.task.l2 == 0
    assert len({job.key for job in jobs}) == len(jobs)
    paths = {path_of(Path(), j.experiment, preset, j.training.label, 0) for j in jobs}
    assert len(paths) == len(jobs), "two trainings would be kept in one file"


@pytest.mark.parametrize("name", BY_NAME)
def test_every_experiment_has_a_tiny_a_small_and_the_papers_preset(name: str) -> None:
    assert {"tiny", "small", "paper"} <= set(BY_NAME[name].presets)


@pytest.mark.parametrize("name", ["gramian/table2", "gramian/gramian-error"])
def test_gowalla_is_a_corpus_of_its_own_in_the_papers_measure(name: str) -> None:
    small, gowalla = (BY_NAME[name].presets[p].trainings for p in ("small", "gowalla"))
    assert {t.label for t in gowalla} <= {t.label for t in small}
    for job in jobs_of(BY_NAME[name], "gowalla", [0], Path("data")):
        recipe = job.recipe()
        assert recipe.data.path == str(Path("data/gowalla/train.txt.gz").resolve())
        assert recipe.task.query_measure == recipe.task.candidate_measure == [1.0]


@pytest.mark.parametrize("name", BY_NAME)
def test_the_papers_preset_is_the_papers_setting(name: str) -> None:
    for job in jobs_of(BY_NAME[name], "paper", [0]):
        recipe = job.recipe()
        if recipe.data.kind == "mediawiki":
            assert recipe.training.optimizer == "sgd"
            tower = recipe.model.model_dump()
            assert (tower["residual"], tower["concatenate"]) == (False, True)
            beside = "uniform measure" in job.training.label
            assert recipe.task.query_measure == [0.0 if beside else 1.0]
            assert recipe.training.precondition == 0
