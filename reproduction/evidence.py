"""Detect stale results by comparing the tiny preset's figures then and now.

A preset that takes hours cannot be repeated after each code change, but the tiny preset runs the
same code in seconds. So each preset stores the figures that the tiny preset gave when its results
were computed. If today's figures differ by more than rounding, the results are stale; a code change
that affects no number leaves them valid.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from evergram.training import Progress
from reproduction import results
from reproduction.experiment import ROOT, Experiment

# Rounding errors of a tiny training, e.g. float32 sums in another order, are far below this.
TOLERANCE = 1e-3
# Times depend on the machine, so they are not compared.
OF_THE_CLOCK = ("seconds", "cpu_seconds", "per_second", "minutes")
# Lists changes of the code that results depend on, without the results themselves.
CHANGED = ("status", "--porcelain", "src", "reproduction", ":!reproduction/results")
State = Literal["current", "stale", "unknown"]


@dataclass(frozen=True)
class Evidence:
    """The figures of an experiment's tiny preset."""

    commit: str  # the repository's commit; "" if unknown
    figures: Mapping[str, float]  # by training and path in its series

    @property
    def key(self) -> str:
        """A hash of the figures, twelve hexadecimal digits."""
        text = json.dumps(dict(self.figures), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def agrees(self, other: Evidence) -> bool:
        """Return True if all figures of earlier evidence are equal here up to rounding. Trainings
        added since are ignored."""
        return all(
            name in self.figures
            and math.isclose(value, self.figures[name], rel_tol=TOLERANCE, abs_tol=TOLERANCE / 10)
            for name, value in other.figures.items()
        )


def path_of(folder: Path, experiment: str, preset: str) -> Path:
    """Return the evidence file of a preset, next to its folder of results."""
    return folder / experiment / f"{preset}.evidence.json"


def kept(folder: Path, experiment: str, preset: str) -> Evidence | None:
    """Return the stored evidence of a preset's results, or None."""
    path = path_of(folder, experiment, preset)
    if not path.is_file():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    return Evidence(values["commit"], values["figures"])


def key_of(folder: Path, experiment: str, preset: str) -> str:
    """Return the key that valid results of a preset have; "" without evidence."""
    evidence = kept(folder, experiment, preset)
    return "" if evidence is None else evidence.key


def valid(experiment: Experiment, preset: str, folder: Path) -> Evidence:
    """Return the evidence that valid results of a preset have: the stored one if it agrees with
    today's figures, otherwise today's."""
    now, then = measured(experiment), kept(folder, experiment.source, preset)
    return then if then is not None and now.agrees(then) else now


def renew(experiment: Experiment, preset: str, folder: Path) -> Evidence:
    """Store the valid evidence of a preset and return it. From then on, results with other evidence
    count as missing."""
    evidence = valid(experiment, preset, folder)
    if evidence != kept(folder, experiment.source, preset):
        facts = {"commit": evidence.commit, "figures": dict(evidence.figures)}
        path = path_of(folder, experiment.source, preset)
        results.write_text(path, json.dumps(facts, ensure_ascii=False))
    return evidence


def state(experiment: Experiment, preset: str, folder: Path) -> State:
    """Return whether the results of a preset match today's code; "unknown" without evidence."""
    then = kept(folder, experiment.source, preset)
    if then is None:
        return "unknown"
    return "current" if measured(experiment).agrees(then) else "stale"


def measured(experiment: Experiment) -> Evidence:
    """Return today's figures of the tiny preset, which is trained once per process."""
    return _measured(experiment.source)


@cache
def _measured(source: str) -> Evidence:
    from reproduction.catalogue import EXPERIMENTS
    from reproduction.run import jobs_of, run_all

    figures: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        jobs = jobs_of(EXPERIMENTS[source], "tiny", [0])
        for made in run_all(jobs, Path(folder), Progress(quiet=True)):
            figures |= {f"{made.label}: {name}": x for name, x in _numbers(made.series)}
    return Evidence(commit(), figures)


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the path and value of each number in a series, except times. A list yields its mean and
    its last number."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not str(name).endswith(OF_THE_CLOCK):
                yield from _numbers(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        finite = [x for x in value if isinstance(x, int | float) and math.isfinite(x)]
        if finite:
            yield f"{path}.mean", float(f"{sum(finite) / len(finite):.6g}")
            yield f"{path}.last", float(f"{finite[-1]:.6g}")
        for place, inner in enumerate(value):
            if isinstance(inner, Mapping | list | tuple):
                yield from _numbers(inner, f"{path}.{place}")
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield path, float(f"{value:.6g}")


@cache
def commit() -> str:
    """Return the commit of the checkout, with "+" if files have changed; "" without git."""
    try:
        answers = [
            subprocess.run(
                ["git", *command], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in (("rev-parse", "--short=12", "HEAD"), CHANGED)
        ]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return answers[0] + ("+" if answers[1] else "")
