"""All tables and figures of the three papers, by name, with their state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from reproduction import results
from reproduction.bc import figure3, figure4, figure5, table3, transforms
from reproduction.experiment import Experiment, Runs
from reproduction.gramian import (
    averaging_error,
    averaging_rate,
    batch_and_rate,
    folding,
    gramian_error,
    growth,
    movielens,
    options,
    penalty,
    rate_error,
)
from reproduction.gramian import table2 as map_over_time

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        gramian_error,
        averaging_error,
        map_over_time,
        folding,
        penalty,
        averaging_rate,
        rate_error,
        batch_and_rate,
        movielens,
        growth,
        options,
        table3,
        figure3,
        figure4,
        figure5,
        transforms,
    )
}
REPRODUCED, READY = "reproduced here: ", "ready, not run yet"
DRAWING = "a drawing, with nothing to measure"


@dataclass(frozen=True)
class Listed:
    """One line of the list."""

    name: str
    shown: Mapping[str, str]  # tables and figures, by paper
    title: str
    state: str  # the state of the small presets, or why there are none
    # The seeds that all trainings have, in all small presets that were run.
    seeds: list[int] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "shown": dict(self.shown)}


ABSENT = (
    Listed("gramian/figure1", {"G1": "Figure 1", "G2": "Figure 1"}, "The model", DRAWING),
    Listed(
        "gramian/table1",
        {"G1": "Tables 1, 3", "G2": "Tables 1, 5"},
        "Sizes of the corpora",
        "needs data that is not here",
    ),
    Listed("bc/figure1", {"BC": "Figure 1"}, "The problem", DRAWING),
    Listed("bc/figure2", {"BC": "Figure 2"}, "The framework", DRAWING),
)


def find(name: str) -> Experiment:
    """Return an experiment by its name.

    Raises: DataError: there is no such experiment (the closest name is suggested), or it cannot be
        run.
    """
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    for each in ABSENT:
        if name == each.name:
            raise DataError(f"{name} ({each.title}) cannot be run: {each.state}.")
    meant = did_you_mean(name, list(EXPERIMENTS), write=str)
    raise DataError(f"There is no experiment {name!r}{meant}; `python -m reproduction` lists all.")


def runs_of(experiment: Experiment, preset: str, folder: Path) -> Runs:
    """Return the results of a preset in a folder, if they have its current settings."""
    from reproduction.run import jobs_of, kept_result, settled

    stored = results.read_all(folder, experiment.source, preset)
    jobs = jobs_of(experiment, preset, sorted({result.seed for result in stored}))
    whole = [job for each in jobs if (job := settled(each, folder)) is not None]
    kept = [result for job in whole if (result := kept_result(job, folder)) is not None]
    return Runs(experiment.presets[preset].trainings, kept)


def listing(folder: Path) -> list[Listed]:
    """Return a line for each table and figure; those that cannot be run come last.

    Args:
        folder: the folder of results.
    """
    lines = []
    for name, experiment in EXPERIMENTS.items():
        each = {p: runs_of(experiment, p, folder).seeds for p in experiment.reported}
        run = {preset: set(seeds) for preset, seeds in each.items() if seeds}
        state = REPRODUCED + ", ".join(run) if run else READY
        seeds = sorted(set.intersection(*run.values())) if run else []
        lines.append(Listed(name, experiment.shown, experiment.title, state, seeds))
    return [*lines, *ABSENT]
