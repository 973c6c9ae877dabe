"""The content of the report, by experiment, before it is Markdown or HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reproduction import evidence
from reproduction.catalogue import EXPERIMENTS, Listed, listing, runs_of
from reproduction.claims import Judgement, judge
from reproduction.experiment import Experiment, Panel, Runs, Table
from reproduction.report.drawing import draw, fingerprint
from reproduction.results import Result

PRESET = "small"  # the one that every experiment has


@dataclass(frozen=True)
class Section:
    """One experiment of the report, on one corpus.

    Args:
        preset: whose results it shows.
        facts: settings, seeds, hardware and time, by their names.
        svg: the figure; "" without results.
        fingerprint: of what is drawn.
        stale: whether the code would give other results today, or nobody knows.
    """

    experiment: Experiment
    preset: str
    facts: dict[str, str]
    tables: Sequence[Table]
    panels: Sequence[Panel]
    judgements: Sequence[Judgement]
    svg: str
    fingerprint: str
    stale: bool = False

    @property
    def title(self) -> str:
        """The experiment's; with the corpus, where it is not the first."""
        corpus = self.experiment.presets[self.preset].corpus
        title = self.experiment.title
        return title if self.preset == PRESET else f"{title}, {corpus}"

    @property
    def name(self) -> str:
        """What `evergram reproduce` takes to make it."""
        name = self.experiment.name
        return name if self.preset == PRESET else f"{name} --preset {self.preset}"


@dataclass(frozen=True)
class Content:
    rows: Sequence[Listed]
    sections: Sequence[Section]

    @property
    def judgements(self) -> list[Judgement]:
        return [judgement for section in self.sections for judgement in section.judgements]


def content(folder: Path) -> Content:
    """Return the content of the report of a folder of results."""
    sections = [section_of(e, folder, p) for e in EXPERIMENTS.values() for p in e.reported]
    return Content(listing(folder), sections)


def section_of(experiment: Experiment, folder: Path, preset: str = PRESET) -> Section:
    """Return the section of a preset; without results it has claims that nothing measured."""
    runs = runs_of(experiment, preset, folder)
    complete = bool(runs.seeds)
    panels = experiment.panels(runs) if complete else []
    state = evidence.state(experiment, preset, folder) if complete else "current"
    rows = facts(experiment.presets[preset].note, runs)
    if complete:
        rows["code"] = code(state, runs, experiment.source, preset)
    return Section(
        experiment,
        preset,
        rows,
        experiment.tables(runs) if complete else [],
        panels,
        [judge(claim, runs if complete else None) for claim in experiment.claims_on(preset)],
        draw(panels),
        fingerprint(panels),
        state != "current",
    )


def code(state: evidence.State, runs: Runs, name: str, preset: str) -> str:
    """Return a sentence on the code that results were made by."""
    commits = ", ".join(sorted({result.commit or "not known" for result in runs.all}))
    if state == "current":
        return f"commit {commits}; the tiny preset gives the same figures today"
    again = f"`evergram reproduce {name} --preset {preset}` runs it again"
    if state == "stale":
        return f"commit {commits}; stale: the tiny preset gives other figures today; {again}"
    return f"not known, so that the results may be stale; {again}"


def facts(note: str, runs: Runs) -> dict[str, str]:
    """Return what a reader must know of a section's results.

    Args:
        note: of the preset.
    """
    results = [result for result in runs.all if result.seed in runs.seeds]
    rows = {"setting": note}
    if not results:
        return rows | {"seeds": "not run yet"}
    count = len(runs.seeds)
    seconds = sum(result.cpu_seconds for result in results)
    return rows | {
        "data": _sizes(results[0]),
        "seeds": f"{count} ({', '.join(map(str, runs.seeds))})"
        + ("" if count > 2 else "; too few for intervals"),
        "hardware": "; ".join(sorted({_machine(result) for result in results})),
        "software": "; ".join(sorted({_software(result) for result in results})),
        "time": f"{seconds / 60 / count:.1f} CPU minutes a seed",
    }


def _sizes(result: Result) -> str:
    sizes = result.series.get("data")
    if sizes is None:  # a program's own series says what it was trained on
        return "see the setting"
    return (
        f"{sizes['queries']:,} queries, {sizes['candidates']:,} candidates, {sizes['training']:,} "
        f"training, {sizes['validation']:,} validation and {sizes['test']:,} test pairs"
    )


def _machine(result: Result) -> str:
    machine = result.machine
    cores, threads = machine["cores"], machine["threads"]
    return f"{machine['processor']}, {cores} cores, {threads} thread{'s' if threads > 1 else ''}"


def _software(result: Result) -> str:
    return ", ".join(f"{name} {number}" for name, number in result.versions.items())
