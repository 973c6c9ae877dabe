"""Every experiment of [BC]: its tiny preset runs, and its other presets are ready to."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from reproduction.bc.rows import ROWS
from reproduction.claims import judge
from reproduction.experiment import Experiment, Runs
from reproduction.report.drawing import draw
from reproduction.results import Result, path_of
from reproduction.row import experiments_of
from reproduction.run import jobs_of, run_all

from evergram.training import Progress
from reproduction.bc import figure5, methods

BY_NAME = experiments_of(ROWS)
IMAGES = "bc/images"
# Those that compare methods over several versions of a corpus of interactions.
COMPARISONS = [name for name in BY_NAME if name != IMAGES]
QUIET = Progress(quiet=True)


@cache
def tiny_results(source: str) -> tuple[Result, ...]:
    """Return the results of an experiment's tiny preset, trained once a process."""
    with TemporaryDirectory() as folder:
        jobs = jobs_of(BY_NAME[source], "tiny", [0])
        made = tuple(run_all(jobs, Path(folder), QUIET))
        # What was half-done is removed with the result.
        assert [path.suffix for path in Path(folder).glob(f"{source}/tiny/*")] == [".json"]
        return made


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
    for table in tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.header)}
        assert not any("nan" in cell for row in table.rows for cell in row)
    for panel in panels:
        assert panel.horizontal
        assert panel.vertical
        for line in panel.lines:
            assert {len(values) for values in line.values} == {len(line.x)}
    assert bool(panels) == ("figure" in name)
    assert draw(panels).startswith("<svg") == bool(panels)


@pytest.mark.long
@pytest.mark.parametrize("name", BY_NAME)
def test_each_claim_has_a_margin_for_each_seed(name: str) -> None:
    experiment = BY_NAME[name]
    # A count of a corpus claims nothing.
    assert bool(experiment.claims) == (name != "bc/table2")
    for claim in experiment.claims:
        assert len(judge(claim, tiny_runs(experiment)).margins) == 1
        judgement = judge(claim, tiny_runs(experiment, 3))
        margin = judgement.margins[0]
        expected = "confirmed" if margin > 0 else "refuted" if margin < 0 else "not separable"
        assert judgement.verdict == expected


@pytest.mark.parametrize("name", BY_NAME)
def test_without_results_nothing_is_measured(name: str) -> None:
    experiment = BY_NAME[name]
    empty = Runs(experiment.presets["small"].trainings, [])
    assert {judge(claim, empty).verdict for claim in experiment.claims} <= {"not measured"}


@pytest.mark.parametrize(
    ("name", "preset"), [(name, preset) for name in BY_NAME for preset in BY_NAME[name].presets]
)
def test_every_recipe_of_a_preset_is_a_recipe(name: str, preset: str) -> None:
    jobs = jobs_of(BY_NAME[name], preset, [0], Path("data"))
    for job in jobs:
        recipe = job.recipe()  # refuses a key that changes nothing
        assert recipe.training.patience == 0
        assert recipe.upgrade.weight == 16
        assert recipe.upgrade.unit == "paper"
        if preset == "small" and name in COMPARISONS:
            assert recipe.upgrade.objects == "all"
            assert recipe.split.versions in ([0.5, 0.6, 0.7, 0.8, 0.9], [0.5, 0.7, 0.9])
            assert len(recipe.model.dim) == len(recipe.split.versions)
    assert len({job.key for job in jobs}) == len(jobs)
    paths = {path_of(Path(), j.experiment, preset, j.training.label, 0) for j in jobs}
    assert len(paths) == len(jobs), "two trainings would be kept in one file"


def test_comparisons_have_a_preset_of_the_papers_and_images_that_it_lacks_have_none() -> None:
    for name in COMPARISONS:
        assert tuple(BY_NAME[name].presets) == ("tiny", "small", "paper")
    assert tuple(BY_NAME[IMAGES].presets) == ("tiny", "small")


def test_table_3_has_all_methods_and_figure_5_all_strengths() -> None:
    for preset in ("small", "paper"):
        for job in jobs_of(BY_NAME["bc/table3"], preset, [0]):
            assert set(job.recipe().compare.methods) == set(methods.NAMES)
        for job in jobs_of(BY_NAME["bc/figure5"], preset, [0]):
            compare = job.recipe().compare
            assert tuple(compare.lambdas) == figure5.STRENGTHS == (1, 2, 4, 8, 16, 32)
            assert tuple(compare.lambda_methods) == methods.JOINT


def test_the_papers_preset_is_the_papers_setting() -> None:
    for job in jobs_of(BY_NAME["bc/table3"], "paper", [0]):
        assert job.values["preset"] == "paper"
        assert job.values["data"]["path"].startswith("$EVERGRAM_DATA/amazon-2018-")
        written = set(job.values) - {"name", "preset", "data", "seed"}
        # App. A.1 has smaller models for Grocery alone.
        assert written == ({"model"} if job.training.label == "Grocery" else set())
        recipe = job.recipe()
        assert (recipe.training.epochs, recipe.training.batch_size) == (500, 2048)
        assert recipe.data.minimum_products == 5


def test_the_papers_corpora_are_read_in_their_layout(tmp_path: Path) -> None:
    """The files as Amazon's 2018 edition names them, in the folders that the recipes name."""
    files = {
        "musical-instruments": "Musical_Instruments",
        "video-games": "Video_Games",
        "grocery": "Grocery_and_Gourmet_Food",
    }
    for folder, name in files.items():
        place = tmp_path / f"amazon-2018-{folder}"
        place.mkdir()
        recipe = (methods.RECIPES / f"paper-{folder}.toml").read_text()
        assert f"{name}_5.json.gz" in recipe
        assert f"meta_{name}.json.gz" in recipe
        reviews = [
            {"overall": 5.0, "verified": True, "reviewerID": f"u{i % 7}", "asin": f"B{i % 6}",
             "style": {"Size:": " 1"}, "unixReviewTime": 86_400 * i}
            for i in range(40)
        ]  # fmt: skip
        products = [
            {"asin": f"B{i}", "brand": "Common" if i < 5 else "Rare",
             "category": ["Music", "Drums" if i else "Flutes"], "title": "x"}
            for i in range(6)
        ]  # fmt: skip
        reviews.append({**reviews[0], "asin": "Undescribed"})
        for stem, rows in ((f"{name}_5", reviews), (f"meta_{name}", products)):
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (place / f"{stem}.json.gz").write_bytes(gzip.compress(text.encode()))
    experiment = BY_NAME["bc/table2"]
    jobs = jobs_of(experiment, "paper", [0], tmp_path)
    runs = Runs(experiment.presets["paper"].trainings, list(run_all(jobs, tmp_path / "r", QUIET)))
    (table,) = experiment.tables(runs)
    # Of the brands Common alone has five products, of the categories Music and Drums.
    assert table.rows[0] == ["Musical Instruments", "7", "6", "40", "1", "2"]
    assert table.rows[3][0] == "Musical Instruments, theirs"
    assert [row[0] for row in table.rows[:3]] == list(methods.PAPER)
