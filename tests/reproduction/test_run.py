"""Running an experiment: what is there is kept, what was interrupted goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reproduction.run import Job, jobs_of, kept_result, run_all

from evergram import Recipe
from evergram import train as train_version
from evergram.errors import DataError
from evergram.training import Progress
from reproduction import results, run
from reproduction.gramian import methods, table2

QUIET = Progress(quiet=True)
PRESET = table2.EXPERIMENT.presets["tiny"]
EXPERIMENT = replace(
    table2.EXPERIMENT, presets={"tiny": replace(PRESET, trainings=PRESET.trainings[:2])}
)


def test_a_run_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of(EXPERIMENT, "tiny", [0])
    running = run_all(jobs, tmp_path, QUIET)
    first = next(running)
    running.close()  # killed after the first training
    trained: list[str] = []
    real = run.train

    def counted(job: Job, *rest: object) -> results.Result:
        trained.append(job.training.label)
        return real(job, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "train", counted)
    both = list(run_all(jobs, tmp_path, QUIET))
    assert trained == [jobs[1].training.label]
    assert both[0].series["map"]["validation"] == pytest.approx(
        first.series["map"]["validation"], rel=1e-5
    )
    assert list(run_all(jobs, tmp_path, QUIET)) == [
        results.read(p) for p in (_path(tmp_path, job) for job in jobs)
    ]
    assert len(trained) == 1


def _path(folder: Path, job: Job) -> Path:
    return results.path_of(folder, job.experiment, job.preset, job.training.label, job.seed)


def test_a_result_of_other_settings_is_not_kept(tmp_path: Path) -> None:
    job = jobs_of(EXPERIMENT, "tiny", [0])[0]
    list(run_all([job], tmp_path, QUIET))
    assert kept_result(job, tmp_path) is not None
    changed = replace(job.training, settings={**job.training.settings, "task.penalty": 3.0})
    assert kept_result(replace(job, training=changed), tmp_path) is None
    other_reading = replace(job.training, readings=())
    assert kept_result(replace(job, training=other_reading), tmp_path) is None
    assert kept_result(replace(job, seed=1), tmp_path) is None


def test_the_same_seed_gives_the_same_series(tmp_path: Path) -> None:
    job = jobs_of(EXPERIMENT, "tiny", [0])[0]
    one, two = (run.train(job, {}, QUIET, tmp_path).series["map"] for _ in range(2))
    assert one["validation"] == two["validation"]
    other = run.train(replace(job, seed=1), {}, QUIET, tmp_path).series["map"]
    assert one["validation"] != other["validation"]


def test_the_recipe_is_read_once_so_that_the_key_is_of_what_was_trained(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(methods.TINY.read_text())
    job = Job("a/b", "tiny", replace(PRESET.trainings[0], recipe=recipe), 0)
    key = job.key
    recipe.write_text(recipe.read_text().replace("penalty = 10.0", "penalty = 1.0"))
    assert job.key == key
    assert Job("a/b", "tiny", job.training, 0).key != key


def test_the_folder_of_data_is_no_part_of_the_key(tmp_path: Path) -> None:
    training = table2.EXPERIMENT.presets["small"].trainings[0]
    here, there = Job("a/b", "small", training, 0), Job("a/b", "small", training, 0, tmp_path)
    assert here.key == there.key
    assert there.recipe().data.path == str(tmp_path / "wikispeedia")
    assert "$EVERGRAM_DATA/" in json.dumps(here.settings)


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    jobs = jobs_of(table2.EXPERIMENT, "paper", [0], tmp_path)
    with pytest.raises(DataError, match="wikipedia-en"):
        list(run_all(jobs, tmp_path, QUIET))


def test_a_preset_that_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match="it has tiny"):
        jobs_of(EXPERIMENT, "huge", [0])


def test_seeds_come_one_after_the_other() -> None:
    jobs = jobs_of(EXPERIMENT, "tiny", [0, 1])
    assert [job.seed for job in jobs] == [0, 0, 1, 1]
    assert len({job.key for job in jobs}) == 4


def two_models(recipe: Recipe, progress: Progress, device: str, work: Path) -> dict[str, Any]:
    """A program that trains more than once."""
    recipes = (recipe, recipe.model_copy(update={"seed": recipe.seed + 1}))
    trained = [train_version(r, device=device, progress=progress) for r in recipes]
    return {"map": [a.metrics["metrics"]["model"]["map@10"] for a in trained]}


def test_what_a_program_returns_is_kept_like_a_training(tmp_path: Path) -> None:
    training = replace(PRESET.trainings[0], label="two", readings=(), program=two_models)
    job = Job("a/b", "tiny", training, 0)
    (made,) = run_all([job], tmp_path, QUIET)
    assert made.series["map"][0] != made.series["map"][1]
    assert kept_result(job, tmp_path) is not None
    assert kept_result(replace(job, training=replace(training, program=None)), tmp_path) is None


def counting_its_starts(
    recipe: Recipe, progress: Progress, device: str, work: Path
) -> dict[str, Any]:
    """A program that is killed the first time that it runs."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "starts").open("a") as file:
        file.write("x")
    starts = len((work / "starts").read_text())
    if starts == 1:
        raise DataError("killed")
    return {"starts": starts}


def test_a_program_finds_what_it_left_and_leaves_nothing_at_the_end(tmp_path: Path) -> None:
    training = replace(PRESET.trainings[0], readings=(), program=counting_its_starts)
    job = Job("a/b", "tiny", training, 0)
    with pytest.raises(DataError, match="killed"):
        list(run_all([job], tmp_path, QUIET))
    work = run.work_folder(job, tmp_path)
    assert (work / "starts").is_file()
    # Other settings are another folder, and what is half-done is no result.
    assert run.work_folder(replace(job, seed=1), tmp_path) != work
    changed = replace(training, settings={**training.settings, "task.penalty": 3.0})
    assert run.work_folder(replace(job, training=changed), tmp_path) != work
    assert results.read_all(tmp_path, "a/b", "tiny") == []
    (made,) = run_all([job], tmp_path, QUIET)
    assert made.series == {"starts": 2}
    assert not work.exists()
    work.mkdir()  # as if it had been killed between the result and this
    list(run_all([job], tmp_path, QUIET))
    assert not work.exists()
