"""Every table and figure of the three papers, by name, with its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from reproduction import results
from reproduction.bc import rows as bc
from reproduction.experiment import Experiment, Runs
from reproduction.gramian import rows as gramian
from reproduction.row import Row, experiments_of

ROWS: dict[str, Row] = {row.name: row for row in (*gramian.ROWS, *bc.ROWS)}
EXPERIMENTS: dict[str, Experiment] = experiments_of(list(ROWS.values()))
REPRODUCED, READY = "reproduced here: ", "ready, not run yet"


@dataclass(frozen=True)
class Listed:
    """One line of the list.

    Args:
        state: of the small presets, or why there are none.
        seeds: that every training has, of all small presets that were run.
        paper_state: of the papers' own setting.
    """

    name: str
    shown: Mapping[str, str]
    title: str
    state: str
    seeds: list[int]
    paper_state: str

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "shown": dict(self.shown)}


def find(name: str) -> Experiment:
    """Return an experiment by its name.

    Raises: DataError: there is none of that name, or it is not built yet; the nearest is named.
    """
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    if name in ROWS:
        row = ROWS[name]
        raise DataError(f"{name} ({row.title}) cannot be run: {row.state}.")
    names = [*EXPERIMENTS, *ROWS]
    meant = did_you_mean(name, names, write=str, likeness=0.4)
    raise DataError(f"There is no experiment {name!r}{meant}; `evergram reproduce` lists all.")


def runs_of(experiment: Experiment, preset: str, folder: Path) -> Runs:
    """Return the results of a preset that are in a folder and were made with its settings."""
    from reproduction.run import jobs_of, kept_result, settled

    stored = results.read_all(folder, experiment.source, preset)
    jobs = jobs_of(experiment, preset, sorted({result.seed for result in stored}))
    whole = [job for each in jobs if (job := settled(each, folder)) is not None]
    kept = [result for job in whole if (result := kept_result(job, folder)) is not None]
    return Runs(experiment.presets[preset].trainings, kept)


def listing(folder: Path) -> list[Listed]:
    """Return a line for each table and figure, in the papers' order.

    Args:
        folder: of results.
    """
    lines = []
    for row in ROWS.values():
        if row.name not in EXPERIMENTS:
            lines.append(Listed(row.name, row.shown, row.title, row.state, [], row.paper_state))
            continue
        experiment = EXPERIMENTS[row.name]
        each = {p: runs_of(experiment, p, folder).seeds for p in experiment.reported}
        run = {preset: set(seeds) for preset, seeds in each.items() if seeds}
        state = REPRODUCED + ", ".join(run) if run else READY
        seeds = sorted(set.intersection(*run.values())) if run else []
        lines.append(Listed(row.name, row.shown, row.title, state, seeds, row.paper_state))
    return lines
