"""BC-Aligner's consumers over time. [BC] Figure 4."""

from __future__ import annotations

from reproduction.bc import table3
from reproduction.bc.claims import known_consumers
from reproduction.bc.columns import by_task, by_version, on_consumers, times
from reproduction.bc.figure3 import HORIZONTAL
from reproduction.bc.methods import ALIGNER
from reproduction.claims import Claim
from reproduction.experiment import Experiment, Line, Panel, Runs, nothing
from reproduction.results import Result

# A task counts as stable if it falls by at most this many points after its first tested version.
STABLE = 2.0


def panels(runs: Runs) -> list[Panel]:
    made = []
    for corpus in runs.labels:
        first = runs.of(corpus)[0]
        x = times(first)
        # Keep-All is zero by definition; the paper shows it as a dotted line.
        lines = [Line("Keep-All", x[1:], [[0.0] * (len(x) - 1)], dashed=True)]
        for task in by_task(first, ALIGNER):
            values = _by_version(runs, corpus, task)
            seeds = list(zip(*values.values(), strict=True))
            lines.append(Line(task, [x[k] for k in values], seeds))
        made.append(Panel(corpus, HORIZONTAL, "(2) consumers, %", lines))
    return made


def _by_version(runs: Runs, corpus: str, task: str) -> dict[int, list[float]]:
    return by_version(runs, corpus, lambda result: by_task(result, ALIGNER)[task])


def tasks_are_stable(result: Result) -> dict[str, float]:
    """Return `STABLE` minus the largest fall after the first tested version, in points, by task."""
    return {
        task: STABLE - (figures[min(figures)] - min(figures.values()))
        for task, figures in by_task(result, ALIGNER).items()
    }


EXPERIMENT = Experiment(
    "bc/figure4",
    {"BC": "Figure 4"},
    "BC-Aligner's consumers over time",
    "Change of each consumer task from Keep-All; the runs of Table 3.",
    table3.PRESETS,
    nothing,
    panels,
    (
        Claim(
            "The performance degradation of each unintended task stays relatively stable over "
            "time.",
            "[BC] §5.2",
            f"{STABLE:g} points less the largest fall of each task after the first version that it "
            "is tested at, MovieLens",
            on_consumers(tasks_are_stable),
            premise=known_consumers,
        ),
    ),
    runs_of=table3.NAME,
)
