"""Runs on disk: one JSON each, written beside its place and renamed into it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.instrument.figures import Figure, figure_of
from benchmarks.instrument.machine import commit, is_busy, load, machine, versions
from evergram.atomic_files import make_folder, write_text
from evergram.errors import DataError

FORMAT = 1
KEPT = ROOT / "benchmarks" / "results"
# Where runs go that nobody asked to keep; git ignores it.
UNKEPT = ROOT / "build" / "benchmarks"


@dataclass(frozen=True)
class Measured:
    """A section of a run.

    Args:
        load: of the machine before the section started, in processes.
        seconds: that it took.
        figures: with their repeated measurements.
    """

    load: float
    seconds: float
    figures: Sequence[Figure]


@dataclass(frozen=True)
class Run:
    """What `python -m benchmarks` measured in one go.

    Args:
        date: when it started, UTC, ISO 8601.
        machine, versions, commit: where and by what.
        load: before the first section.
        sections: by name.
    """

    date: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    commit: str
    load: float
    sections: dict[str, Measured] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of its file: the date and the commit."""
        stamp = self.date.replace("-", "").replace(":", "")[:15]
        return f"{stamp}-{self.commit.rstrip('+') or 'no-commit'}.json"

    def is_busy(self, section: str) -> bool:
        """Whether something else ran on the machine before the section started."""
        only = next(iter(self.sections))
        # Later sections have the run's own load of the last minute in theirs.
        before = self.sections[section].load if section == only else self.load
        return is_busy(before, int(self.machine["cores"]))

    def busy_note(self, section: str) -> str:
        """Return the sentence that says a section was disturbed."""
        return (
            f"The machine was busy: load {self.load:.1f} when the run started and "
            f"{self.sections[section].load:.1f} when the section did, on {self.machine['cores']} "
            "cores; read its figures with that in mind."
        )


def begin() -> Run:
    """Return a run without sections, as of now and here."""
    date = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Run(date, machine(), versions(), commit(), load())


def as_json(run: Run) -> str:
    plain = asdict(run)
    for name, measured in run.sections.items():
        plain["sections"][name]["figures"] = [figure.plain() for figure in measured.figures]
    return json.dumps({"format": FORMAT, **plain}, ensure_ascii=False, indent=1)


def write(run: Run, out: Path) -> Path:
    """Write a run, whole or not at all, and return its path.

    Args:
        out: a file that ends in .json, or a folder.
    Raises: DataError: the file cannot be written.
    """
    path = out if out.suffix == ".json" else out / run.name
    try:
        make_folder(path.parent, 0o644)
        write_text(path, as_json(run))
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}; choose another --out.") from (
            error
        )
    return path


def read(path: Path) -> Run:
    """Return a run. Raises: DataError: the file is none, or of another format."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        number = plain.pop("format")
        if number != FORMAT:
            raise DataError(f"{path} has format {number}; this code reads {FORMAT}.")
        sections = {
            name: Measured(
                float(each["load"]), float(each["seconds"]), [figure_of(f) for f in each["figures"]]
            )
            for name, each in plain.pop("sections").items()
        }
        return Run(**plain, sections=sections)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"{path} is no run of the benchmarks ({error}); give a file that python -m benchmarks "
            "--out has written."
        ) from error


def kept(folder: Path = KEPT) -> list[Run]:
    """Return the kept runs, oldest first. Raises: DataError: one cannot be read."""
    return sorted((read(path) for path in folder.glob("[!.]*.json")), key=lambda run: run.date)


def last_of_each(runs: Sequence[Run]) -> dict[str, Run]:
    """Return, for each section, the last of some runs that has it."""
    ordered = sorted(runs, key=lambda run: run.date)
    return {name: run for run in ordered for name in run.sections}
