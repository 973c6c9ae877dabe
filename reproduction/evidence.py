"""Whether kept results are still what the code gives: figures of the tiny preset, then and now.

A preset that takes hours cannot be repeated after each change of the code. Its tiny sibling can: it
goes through the same code in seconds. Each preset therefore keeps the figures that the tiny one
gave when its results were made. Where today's differ by more than rounding, the results are stale;
a change of the code that changes no number leaves them as they are.
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

# Sums of float32 in another order, over the steps of a tiny training, stay far below it.
TOLERANCE = 1e-3
# Times are of the machine.
OF_THE_CLOCK = ("seconds", "cpu_seconds", "per_second", "minutes")
# What results depend on, and they themselves do not.
CHANGED = ("status", "--porcelain", "src", "reproduction", ":!reproduction/results")
State = Literal["current", "stale", "unknown"]


@dataclass(frozen=True)
class Evidence:
    """What the tiny preset of an experiment gave.

    Args:
        commit: of the repository; "" where it is not known.
        figures: by training and path in its series.
    """

    commit: str
    figures: Mapping[str, float]

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits of the figures."""
        text = json.dumps(dict(self.figures), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def agrees(self, other: Evidence) -> bool:
        """Return whether all figures of an earlier evidence are the same here but for rounding. It
        has none of a training that was added since."""
        return all(
            name in self.figures
            and math.isclose(value, self.figures[name], rel_tol=TOLERANCE, abs_tol=TOLERANCE / 10)
            for name, value in other.figures.items()
        )


def path_of(folder: Path, experiment: str, preset: str) -> Path:
    """Return where the evidence of a preset's results is, next to the folder of these."""
    return folder / experiment / f"{preset}.evidence.json"


def kept(folder: Path, experiment: str, preset: str) -> Evidence | None:
    """Return the evidence of a preset's results; None where there is none."""
    path = path_of(folder, experiment, preset)
    if not path.is_file():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    return Evidence(values["commit"], values["figures"])


def key_of(folder: Path, experiment: str, preset: str) -> str:
    """Return the key that current results of a preset carry; "" without evidence."""
    evidence = kept(folder, experiment, preset)
    return "" if evidence is None else evidence.key


def valid(experiment: Experiment, preset: str, folder: Path) -> Evidence:
    """Return the evidence that current results of a preset have: what is kept, where it agrees with
    today's, or else today's."""
    now, then = measured(experiment), kept(folder, experiment.source, preset)
    return then if then is not None and now.agrees(then) else now


def renew(experiment: Experiment, preset: str, folder: Path) -> Evidence:
    """Keep the valid evidence of a preset and return it. Results that were made with other figures
    count as missing from then on."""
    evidence = valid(experiment, preset, folder)
    if evidence != kept(folder, experiment.source, preset):
        facts = {"commit": evidence.commit, "figures": dict(evidence.figures)}
        path = path_of(folder, experiment.source, preset)
        results.write_text(path, json.dumps(facts, ensure_ascii=False))
    return evidence


def state(experiment: Experiment, preset: str, folder: Path) -> State:
    """Return whether the results of a preset are what the code gives today; "unknown" of results
    without evidence."""
    then = kept(folder, experiment.source, preset)
    if then is None:
        return "unknown"
    return "current" if measured(experiment).agrees(then) else "stale"


def measured(experiment: Experiment) -> Evidence:
    """Return what the tiny preset gives today; it is trained once a process."""
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
    """Yield the numbers in a series, but for times, by their paths. Of a list: its mean and its
    last."""
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
    """Return the commit of the checkout, with "+" if files were changed since; "" without git."""
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
