"""Three methods and ours by λ. [BC] Figure 5."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from reproduction.bc import methods
from reproduction.bc.claims import known_consumers
from reproduction.bc.columns import (
    consumers_of,
    of_corpus,
    on_consumers,
    on_first,
    on_music,
    swept,
)
from reproduction.bc.figure3 import VERTICAL
from reproduction.bc.methods import (
    ALIGNER,
    EVERGRAM,
    JOINT,
    JOINT_SINGLE,
    KEEP_ALL,
    NAMES,
    NO_TRANS,
)
from reproduction.bc.table3 import trainings
from reproduction.claims import Claim
from reproduction.experiment import Experiment, Line, Panel, Preset, Runs, Table, Training
from reproduction.intervals import shown
from reproduction.results import Result

STRENGTHS = (1, 2, 4, 8, 16, 32)
THREE = (NO_TRANS, JOINT_SINGLE, ALIGNER)
SOURCE = "[BC] §5.2"


# Every second version, which halves the trainings, fewer passes, and one consumer width.
FEWER: dict[str, Any] = {
    "split.versions": [0.5, 0.7, 0.9],
    "training.epochs": 16,
    "training.evaluate_every": 2,
    "upgrade.select_after": 4,
    "compare.hidden": [128],
    "compare.dropout": [0.0],
    "compare.consumers": 5,
}
BY_CORPUS: dict[str, dict[str, Any]] = {
    "amazon-beauty": {"model.dim": [16, 24, 32]},
    "amazon-musical-instruments": {"model.layers": [1, 2, 2], "model.dim": [32, 48, 64]},
}


def sweep_of(strengths: tuple[int, ...] = STRENGTHS) -> dict[str, Any]:
    """Return the settings for comparing the joint methods at every λ."""
    return {"compare.methods": [KEEP_ALL, *JOINT], "compare.lambdas": list(strengths)}


def on_two_corpora(settings: Mapping[str, Any]) -> tuple[Training, ...]:
    """Return a comparison with these settings on both corpora of the small preset."""
    return tuple(
        training
        for corpus, own in BY_CORPUS.items()
        for training in trainings({corpus: methods.SMALL[corpus]}, **{**FEWER, **own, **settings})
    )


def tables(runs: Runs) -> list[Table]:
    """Return the rows of two methods on each corpus, for three λ; the figure has all."""
    strengths = list(swept(runs.of(runs.labels[0])[0], ALIGNER, "error"))
    chosen = [strengths[0], *strengths[-2:]] if len(strengths) > 2 else strengths
    columns = list(product(("intended", "error"), chosen))
    rows = [
        [methods.SHORT[c], NAMES[m], *(_cell(runs, c, m, key, w) for key, w in columns)]
        for c, m in product(runs.labels, (ALIGNER, EVERGRAM))
    ]
    header = ["", "", *(f"{methods.COLUMNS[key]}, λ = {w:g}" for key, w in columns)]
    return [Table("The metrics by λ", header, rows)]


def _cell(runs: Runs, corpus: str, method: str, column: str, weight: float) -> str:
    values = of_corpus(runs, corpus, partial(_at, method, column, weight))
    return shown(values, 3 if column == "error" else 1)


def panels(runs: Runs) -> list[Panel]:
    """Return one diagram per metric by λ."""
    made = []
    for corpus in runs.labels:
        for column, vertical in VERTICAL.items():
            lines = [_line(runs, corpus, method, column) for method in JOINT]
            made.append(Panel(corpus, "λ", vertical, lines, log_x=True))
    return made


def _line(runs: Runs, corpus: str, method: str, column: str) -> Line:
    strengths = list(swept(runs.of(corpus)[0], method, column))
    values = zip(
        *(of_corpus(runs, corpus, partial(_at, method, column, w)) for w in strengths),
        strict=True,
    )
    return Line(NAMES[method], strengths, list(values))


def _at(method: str, column: str, weight: float, result: Result) -> float:
    return swept(result, method, column)[weight]


def _change(result: Result, method: str, column: str) -> float:
    """Return the difference of a metric between the largest and the smallest λ."""
    figures = swept(result, method, column)
    return figures[max(figures)] - figures[min(figures)]


def large_costs(result: Result) -> dict[str, float]:
    return {NAMES[method]: -_change(result, method, "intended") for method in THREE}


def large_helps_consumers(result: Result) -> dict[str, float]:
    return {NAMES[method]: _change(result, method, "unintended") for method in THREE}


def nothing_to_lose(runs: Runs) -> str:
    """Return why (2) cannot rise with λ: at the smallest λ no method's consumers lose anything."""
    if reason := known_consumers(runs):
        return reason
    results = runs.of(consumers_of(runs))
    figures = [[swept(result, method, "unintended") for result in results] for method in THREE]
    least = min(fmean(each[min(each)] for each in of_method) for of_method in figures)
    if least < 0:
        return ""
    smallest = min(figures[0][0])
    return f"with λ = {smallest:g} consumers already gain {least:.1f} points or more"


def large_is_closer(result: Result) -> dict[str, float]:
    changes = {method: _change(result, method, "error") for method in THREE}
    return {
        NAMES[method]: -100 * change / max(swept(result, method, "error").values())
        for method, change in changes.items()
    }


CLAIMS = (
    Claim(
        "As λ increases, all the methods have larger degradation in the intended task.",
        SOURCE,
        "how much lower (1) of each is at the largest λ than at the smallest, points, Amazon "
        "Beauty",
        on_first(large_costs),
        "On Musical Instruments joint training finds as much as Keep-All or more, so that (1) is "
        "not judged there.",
    ),
    Claim(
        "As λ increases, all the methods have smaller degradation in the unintended tasks.",
        SOURCE,
        "how much higher (2) of each is at the largest λ than at the smallest, points, Amazon "
        "Beauty",
        on_consumers(large_helps_consumers),
        premise=nothing_to_lose,
    ),
    Claim(
        "As λ increases, all the methods have a smaller error.",
        SOURCE,
        "how much smaller (3) of each is at the largest λ than at the smallest, % of the largest, "
        "Musical Instruments",
        on_music(large_is_closer),
    ),
)
EXPERIMENT = Experiment(
    "bc/figure5",
    {"BC": "Figure 5"},
    "Three methods by λ",
    "The metrics of the joint methods by λ, in the unit of the paper's code.",
    {
        "tiny": Preset(
            trainings({"synthetic": methods.TINY}, **sweep_of((1, 16))), methods.TINY_NOTE
        ),
        "small": Preset(on_two_corpora(sweep_of()), methods.SWEPT_NOTE),
    },
    tables,
    panels,
    CLAIMS,
)
