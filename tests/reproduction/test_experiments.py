"""Every experiment: its tiny preset runs and is shown, and its other presets are ready to run."""

from __future__ import annotations

import gzip
import json
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from reproduction.bc import figure5, methods
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
    # A count of a corpus claims nothing.
    assert bool(experiment.claims) == (name != "bc/table2")
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


PAPER = tomllib.loads((methods.RECIPES / "table3-paper.toml").read_text())


def test_the_papers_preset_is_the_papers_setting() -> None:
    for job in jobs_of(EXPERIMENTS["bc/table3"], "paper", [0]):
        # App. A.1 has smaller models for Grocery alone.
        model = {"layers": [1, 1, 2, 2, 2], "dim": [256, 320, 384, 384, 384]}
        grocery = {**PAPER["model"], **model} if job.training.label == "Grocery" else PAPER["model"]
        own = {key: job.values[key] for key in PAPER if key not in ("name", "data")}
        assert own == {key: PAPER[key] for key in own} | {"model": grocery}
        comparison = job.recipe()
        values = comparison.base.model_dump()
        assert [values["training"][key] for key in ("epochs", "batch_size")] == [500, 2048]
        assert values["data"]["minimum_products"] == 5
        assert set(comparison.settings.methods) == set(methods.NAMES)
    for job in jobs_of(EXPERIMENTS["bc/figure5"], "paper", [0]):
        compare = job.recipe().settings
        assert tuple(compare.lambdas) == figure5.STRENGTHS == (1, 2, 4, 8, 16, 32)
        assert tuple(compare.lambda_methods) == methods.JOINT
    for job in jobs_of(EXPERIMENTS["gramian/table2"], "paper", [0]):
        recipe = job.recipe()
        assert recipe.training.optimizer == "sgd"
        tower = recipe.model.model_dump()
        assert not tower["residual"]
        other = "other measure" in job.training.label
        assert recipe.task.query_measure == [0.0 if other else 1.0]
        assert recipe.training.precondition == 0


def test_the_papers_corpora_are_read_in_their_layout(tmp_path: Path) -> None:
    """The files as Amazon's 2018 edition names them, in the folders that the recipes name."""
    files = {
        "musical-instruments": "Musical_Instruments",
        "video-games": "Video_Games",
        "grocery": "Grocery_and_Gourmet_Food",
    }
    reviews = [
        {"overall": 5.0, "verified": True, "reviewerID": f"u{i % 7}", "asin": f"B{i % 6}",
         "style": {"Size:": " 1"}, "unixReviewTime": 86_400 * i}
        for i in range(40)
    ]  # fmt: skip
    reviews.append({**reviews[0], "asin": "Undescribed"})
    products = [
        {"asin": f"B{i}", "brand": "Common" if i < 5 else "Rare",
         "category": ["Music", "Drums" if i else "Flutes"], "title": "x"}
        for i in range(6)
    ]  # fmt: skip
    for folder, name in files.items():
        place = tmp_path / f"amazon-2018-{folder}"
        place.mkdir()
        for stem, rows in ((f"{name}_5", reviews), (f"meta_{name}", products)):
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (place / f"{stem}.json.gz").write_bytes(gzip.compress(text.encode()))
    experiment = EXPERIMENTS["bc/table2"]
    jobs = jobs_of(experiment, "paper", [0], tmp_path)
    runs = Runs(experiment.presets["paper"].trainings, list(run_all(jobs, tmp_path / "r", QUIET)))
    (table,) = experiment.tables(runs)
    # Of the brands Common alone has five products, of the categories Music and Drums.
    assert table.rows[0] == ["Musical Instruments", "7", "6", "40", "1", "2"]
    assert table.rows[3][0] == "Musical Instruments, theirs"
    assert [row[0] for row in table.rows[:3]] == list(methods.PAPER)
