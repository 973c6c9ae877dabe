"""Run an experiment's trainings that have no result yet."""

from __future__ import annotations

import shutil
import time
import tomllib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from evergram import Corpus, Recipe, load_corpus, split_for
from evergram.data import Split
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from evergram.training import Progress, RunContext, fit_encoder, pick_device
from reproduction import evidence, results
from reproduction.experiment import Experiment, Training
from reproduction.planted import Planted
from reproduction.results import Result

PREFIX = "$EVERGRAM_DATA/"
# The seed of the split on which settings are chosen; no reported seed uses it.
SEARCH_SEED = 1000
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Job:
    """One training with one seed."""

    experiment: str
    preset: str
    training: Training
    seed: int
    data: Path | None = None  # the folder of data sets; None for $EVERGRAM_DATA

    @cached_property
    def values(self) -> dict[str, Any]:
        """The recipe as nested dicts, with the training's settings and its seed. It is read once,
        so that a result's key matches what was trained."""
        values = tomllib.loads(self.training.recipe.read_text())
        for key, value in self.training.settings.items():
            table, _, name = key.rpartition(".")
            own = values.setdefault(table, {}) if table else values
            own[name] = value
            if value is None:  # these settings remove the key
                del own[name]
        return {**values, "seed": self.seed}

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that the result depends on except the seed, as JSON."""
        recipe = {name: value for name, value in self.values.items() if name != "seed"}
        settings = {
            "recipe": recipe,
            "readings": [reading.settings() for reading in self.training.readings],
            "planted": self.training.planted and dict(self.training.planted),
        }
        program = self.training.program
        return settings if program is None else {**settings, "program": program.__name__}

    @property
    def key(self) -> str:
        return results.key_of(self.settings, self.seed)

    def recipe(self) -> Any:
        """Return the recipe (or the output of `Training.reads`) with the resolved path of the data.
        Raises: RecipeError."""
        values = dict(self.values)
        path = values["data"].get("path", "")
        if self.data is not None and path.startswith(PREFIX):
            rest = path.removeprefix(PREFIX)
            values["data"] = {**values["data"], "path": str(self.data.resolve() / rest)}
        source = f"{self.experiment}, {self.training.label}"
        return self.training.reads(values, folder=self.training.recipe.parent, source=source)


def jobs_of(
    experiment: Experiment, preset: str, seeds: Sequence[int], data: Path | None = None
) -> list[Job]:
    """Return all trainings of a preset, seed by seed, so that an interrupted run has complete
    seeds.

    Raises: DataError: the experiment does not have the preset.
    """
    if preset not in experiment.presets:
        raise DataError(
            f"{experiment.name} has no preset {preset!r}; it has {', '.join(experiment.presets)}"
            f"{did_you_mean(preset, experiment.presets)}."
        )
    trainings = experiment.presets[preset].trainings
    return [Job(experiment.source, preset, t, seed, data) for seed in seeds for t in trainings]


def run_all(
    jobs: Sequence[Job],
    folder: Path,
    progress: Progress,
    device: str = "cpu",
    evidenced: Experiment | None = None,
) -> Generator[Result, None, None]:
    """Yield the result of each job, after running the trials that choose its settings. Results
    that exist in `folder` are read, not trained again.

    Args:
        folder: the folder of results; one JSON file is written after each training.
        evidenced: the jobs' experiment; existing results count as missing if its tiny preset gives
            other figures than the stored evidence. None skips this comparison.
    Raises: DataError, RecipeError, TrainingError.
    """
    chosen = pick_device(device)
    loaded: dict[str, Split] = {}
    trials = [*{path_of(t, folder): t for job in jobs for t in trials_of(job)}.values()]
    key = evidence.key_of(folder, jobs[0].experiment, jobs[0].preset) if jobs else ""
    if evidenced is not None and any(path_of(job, folder).is_file() for job in [*trials, *jobs]):
        progress.say(f"{evidenced.name}: comparing the tiny preset with that of the kept results")
        key = evidence.valid(evidenced, jobs[0].preset, folder).key
    for number, unsettled in enumerate([*trials, *jobs], 1):
        job = settled(unsettled, folder) or unsettled
        title = f"{job.experiment} {job.preset} {number}/{len(trials) + len(jobs)}"
        work = work_folder(job, folder)
        result = kept_result(job, folder, key)
        if result is not None:
            progress.say(f"{title}: {job.training.label}, seed {job.seed}: kept")
        else:
            made = train(job, loaded, progress.of(title), work, chosen)
            if evidenced is not None:
                key = evidence.renew(evidenced, jobs[0].preset, folder).key
            result = replace(made, evidence=key, commit=evidence.commit())
            results.write(folder, result)
        shutil.rmtree(work, ignore_errors=True)
        if number > len(trials):
            yield result


def trials_of(job: Job) -> list[Job]:
    """Return the trials that choose a job's settings; their results are in a separate folder."""
    training, search = job.training, job.training.search
    if search is None:
        return []
    return [
        replace(
            job,
            preset=f"{job.preset}.trials",
            training=replace(
                training,
                label=f"{search.label}, trial {number}",
                settings={**search.settings, **trial},
                search=None,
            ),
            seed=SEARCH_SEED,
        )
        for number, trial in enumerate(search.trials, 1)
    ]


def settled(job: Job, folder: Path) -> Job | None:
    """Return a job with the settings of its best trial, or None while a trial has no result."""
    search = job.training.search
    if search is None:
        return job
    key = evidence.key_of(folder, job.experiment, job.preset)
    found = [kept_result(trial, folder, key) for trial in trials_of(job)]
    if None in found:
        return None
    scores = [search.score(result) for result in found if result is not None]
    best = search.trials[scores.index(max(scores))]
    settings = {**job.training.settings, **best}
    return replace(job, training=replace(job.training, settings=settings, search=None))


def kept_result(job: Job, folder: Path, key: str | None = None) -> Result | None:
    """Return a job's result if it is in the folder and has the same settings.

    Args:
        key: the evidence key that it must have; by default the preset's.
    """
    path = path_of(job, folder)
    if not path.is_file():
        return None
    if key is None:
        key = evidence.key_of(folder, job.experiment, job.preset)
    result = results.read(path)
    return result if (result.key, result.evidence) == (job.key, key) else None


def path_of(job: Job, folder: Path) -> Path:
    """Return the path of a job's result."""
    return results.path_of(folder, job.experiment, job.preset, job.training.label, job.seed)


def work_folder(job: Job, folder: Path) -> Path:
    """Return the hidden folder, next to the result, for the unfinished work of a job's program."""
    path = path_of(job, folder)
    return path.with_name(f".{path.stem}.{job.key}")


def train(
    job: Job,
    loaded: dict[str, Split],
    progress: Progress,
    work: Path,
    device: torch.device = CPU,
) -> Result:
    """Train a job and return its result.

    Args:
        loaded: cache of the last split, by data and seed, shared by consecutive jobs.
        work: the folder for a program.
    """
    recipe = job.recipe()
    started, cpu = time.perf_counter(), time.process_time()
    if job.training.program is not None:
        series = dict(job.training.program(recipe, progress, device.type, work))
    else:
        split = _split(job, recipe, loaded)
        started, cpu = time.perf_counter(), time.process_time()
        series = _fit(job, recipe, split, progress, device) | facts(split)
    return Result(
        experiment=job.experiment,
        preset=job.preset,
        label=job.training.label,
        seed=job.seed,
        key=job.key,
        settings=job.settings,
        machine=results.machine(),
        versions=results.versions(),
        date=time.strftime("%Y-%m-%d"),
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - cpu,
        series=series,
    )


def _fit(
    job: Job, recipe: Recipe, split: Split, progress: Progress, device: torch.device
) -> dict[str, Any]:
    """Train version 0 and return the readings' series."""
    watches = {r.name: r.watch(recipe, split) for r in job.training.readings}
    context = RunContext(
        device,
        progress=progress,
        callbacks=list(watches.values()),
        title=f"{job.training.label}, seed {job.seed}",
        warns=False,
    )
    trained = fit_encoder(recipe, split, 0, context)
    return {name: watch.read(trained) for name, watch in watches.items()}


def facts(split: Split) -> dict[str, Any]:
    """Return the sizes of a split's corpus."""
    corpus = split.training
    return {
        "data": {
            "queries": len(corpus.queries),
            "candidates": len(corpus.candidates),
            "training": len(corpus),
            "validation": len(split.selection),
            "test": len(split.test),
        }
    }


def _split(job: Job, recipe: Recipe, loaded: dict[str, Split]) -> Split:
    values = job.values
    parts = {"data": values["data"], "split": values.get("split"), "planted": job.training.planted}
    name = results.key_of(parts, job.seed)
    if name not in loaded:
        loaded.clear()
        loaded[name] = split_for(recipe, _corpus(job, recipe), 0)
    return loaded[name]


def _corpus(job: Job, recipe: Recipe) -> Corpus:
    if job.training.planted is None:
        return load_corpus(recipe)
    size = dict(job.training.planted)
    interactions = size.pop("interactions")
    return Planted(**size, seed=job.seed).corpus(interactions)
