"""The functions behind the command `python -m reproduction`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from evergram.training import Progress
from reproduction import evidence, results
from reproduction.catalogue import EXPERIMENTS, Listed, find, runs_of
from reproduction.claims import Judgement, judge
from reproduction.experiment import ROOT, Table
from reproduction.report.page import write_report
from reproduction.run import jobs_of, run_all


@dataclass(frozen=True)
class Run:
    """One call of the command."""

    # The experiment and its preset.
    name: str
    preset: str = "small"
    seeds: int = 1  # number of seeds, from 0
    data: Path | None = None  # the folder of data sets; None is $EVERGRAM_DATA
    out: Path = results.FOLDER  # the folder of results
    device: str = "cpu"  # auto, cpu or cuda


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run."""

    name: str
    preset: str
    seeds: list[int]
    tables: Sequence[Table]
    judgements: Sequence[Judgement]
    folder: Path  # the folder of the preset's results

    @property
    def sentences(self) -> list[str]:
        """One line per claim."""
        return [f"{j.verdict}: {j.claim.sentence} {j.claim.source}" for j in self.judgements]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "preset": self.preset,
            "seeds": self.seeds,
            "tables": [
                {"title": t.title, "header": list(t.header), "rows": [list(r) for r in t.rows]}
                for t in self.tables
            ],
            "claims": [judgement.as_json() for judgement in self.judgements],
            "results": str(self.folder),
        }


def reproduce(run: Run, progress: Progress) -> Outcome:
    """Run trainings without a result, and return the tables and verdicts of all available seeds.

    Raises: DataError: `run.out` is a file (checked before training), and others; RecipeError,
        TrainingError.
    """
    experiment = find(run.name)
    results.refuse_file(run.out)
    jobs = jobs_of(experiment, run.preset, range(run.seeds), run.data)
    compared = experiment if run.preset != "tiny" else None
    for _ in run_all(jobs, run.out, progress, run.device, compared):
        pass
    runs = runs_of(experiment, run.preset, run.out)
    return Outcome(
        experiment.name,
        run.preset,
        runs.seeds,
        experiment.tables(runs),
        [judge(claim, runs) for claim in experiment.claims_on(run.preset)],
        run.out / experiment.source / run.preset,
    )


def reproduce_all(run: Run, progress: Progress) -> list[Outcome]:
    """Run a preset of every experiment that has it. Raises: DataError: no experiment has it."""
    own = [e for e in EXPERIMENTS.values() if e.name == e.source and run.preset in e.presets]
    if not own:
        presets = sorted({name for e in EXPERIMENTS.values() for name in e.presets})
        raise DataError(
            f"No experiment has a preset {run.preset!r}; presets are {', '.join(presets)}"
            f"{did_you_mean(run.preset, presets)}."
        )
    return [reproduce(replace(run, name=experiment.name), progress) for experiment in own]


def reproduce_stale(run: Run, progress: Progress) -> list[Outcome]:
    """Rerun the presets with stale results, with the same seeds."""
    outcomes = []
    for experiment in (e for e in EXPERIMENTS.values() if e.name == e.source):
        for preset in experiment.presets:
            stored = results.read_all(run.out, experiment.name, preset)
            if preset == "tiny" or not stored:
                continue
            if evidence.state(experiment, preset, run.out) != "current":
                seeds = 1 + max(result.seed for result in stored)
                again = replace(run, name=experiment.name, preset=preset, seeds=seeds)
                outcomes.append(reproduce(again, progress))
    return outcomes


def list_lines(lines: Sequence[Listed]) -> list[str]:
    """Return the list as text, one line per table or figure."""
    width = max(len(line.name) for line in lines)
    texts = []
    for line in lines:
        shown = "; ".join(f"[{paper}] {where}" for paper, where in line.shown.items())
        seeds = f" ({len(line.seeds)} seed{'s' * (len(line.seeds) > 1)})" if line.seeds else ""
        texts.append(f"{line.name:{width}}  {line.title} ({shown}): {line.state}{seeds}")
    return texts


def make_report(out: Path) -> list[Path]:
    """Write the report and return its files, the page first.

    Args:
        out: the folder of results, into which the report is also written; the report of
            `results.FOLDER` is written into `docs` and README.
    Raises: DataError: `out` is a file or has no results, or a result cannot be read.
    """
    if out == results.FOLDER:
        return write_report(out, ROOT / "docs", ROOT / "README.md")
    results.refuse_file(out)
    sources = {experiment.source for experiment in EXPERIMENTS.values()}
    if not any(results.are_there(out, source) for source in sources):
        raise DataError(
            f"{out} has no results for a report; give the folder into which "
            "`python -m reproduction NAME --out` wrote its results."
        )
    return write_report(out, out)
