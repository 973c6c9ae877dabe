"""Gramian error by α with two learning rates. [G1] Fig. 7; [G2] Fig. 8."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from statistics import fmean

from reproduction.claims import Claim
from reproduction.experiment import Experiment, Line, Panel, Preset, Runs, Table, Training
from reproduction.gramian import methods
from reproduction.gramian.gramian_error import KINDS, RATES, last_quarter, sogram_name
from reproduction.intervals import shown
from reproduction.readings.gramian_errors import GramianErrors
from reproduction.results import Result

# The papers' 0.01 and 0.002.
FACTORS = {1.0: "η", 0.2: "η / 5"}
OWN_RATE, SIZE = 0.1, 512
JUDGED = 0.01


def trainings(
    recipe: Path, rates: tuple[float, float, float], size: int, every: int, **settings: int
) -> tuple[Training, ...]:
    tables = {sogram_name(rate): methods.looking_on(methods.sogram(rate), size) for rate in RATES}
    made = []
    for factor, name in FACTORS.items():
        scaled = dict(zip(methods.RATE_KEYS, (factor * rate for rate in rates), strict=True))
        own = methods.in_recipe(methods.sogram(OWN_RATE))
        reading = GramianErrors(tables, every)
        made.append(Training(name, recipe, {**own, **scaled, **settings}, (reading,)))
    return tuple(made)


def late(result: Result, rate: float) -> float:
    return last_quarter(result.series["errors"]["gramian"][sogram_name(rate)])


def early(result: Result, rate: float) -> float:
    errors = result.series["errors"]["gramian"][sogram_name(rate)]
    return fmean(errors[: max(1, len(errors) // 4)])


def tables(runs: Runs) -> list[Table]:
    rows = [
        [str(rate), *(shown([late(r, rate) for r in runs.of(name)]) for name in runs.labels)]
        for rate in RATES
    ]
    return [Table(f"{KINDS['gramian']}, last quarter", ["α", *runs.labels], rows)]


def panels(runs: Runs) -> list[Panel]:
    return [
        Panel(
            name,
            "step",
            KINDS["gramian"],
            [
                Line(
                    sogram_name(rate),
                    results[0].series["errors"]["step"],
                    [r.series["errors"]["gramian"][sogram_name(rate)] for r in results],
                )
                for rate in RATES
            ],
            log_y=True,
        )
        for name in runs.labels
        if (results := runs.of(name))
    ]


def decays_sooner(runs: Runs) -> list[float]:
    """Return how much lower the error of α = 0.01 is with the smaller learning rate, in % of that
    with the larger, over the first quarter of the measurements."""
    fast, slow = (runs.values(name, partial(early, rate=JUDGED)) for name in FACTORS.values())
    return [100 * (a - b) / a for a, b in zip(fast, slow, strict=True)]


def still_moves(runs: Runs) -> str:
    """Return why the faster trajectory has not settled, or "": a low α follows it late."""
    errors = {a: runs.values(FACTORS[1.0], partial(late, rate=a)) for a in (JUDGED, OWN_RATE)}
    slow, fast = map(fmean, errors.values())
    if slow <= fast:
        return ""
    return (
        f"with the larger rate the vectors still move, so that α = {JUDGED:g} follows them late "
        f"(its error is {slow:.3f}, and that of α = {OWN_RATE:g} is {fast:.3f})"
    )


def ends_alike(runs: Runs) -> list[float]:
    """Return how far the ratio of the errors at the end is within a factor of two, as log2."""
    both = zip(*(runs.values(n, lambda r: late(r, JUDGED)) for n in FACTORS.values()), strict=True)
    return [1 - abs(math.log2(a / b)) for a, b in both]


EXPERIMENT = Experiment(
    "gramian/rate-error",
    {"G1": "Figure 7", "G2": "Figure 8"},
    "Gramian error by α with two learning rates",
    "The second trajectory is trained at a fifth of the rate.",
    {
        "tiny": Preset(trainings(methods.TINY, (0.1, 0.02, 1e-3), 32, 5), methods.TINY_NOTE),
        "small": methods.on_wikispeedia(
            trainings(methods.SMALL, methods.SMALL_RATES, SIZE, 50, **{"training.epochs": 3}),
            "The exact Gramian, where the papers took a large sample.",
        ),
    },
    tables,
    panels,
    (
        Claim(
            "With a smaller learning rate the error decays much faster.",
            "[G1] App. D, [G2] App. E.3",
            "how much lower the error of α = 0.01 is over the first quarter, %",
            decays_sooner,
        ),
        Claim(
            "The errors converge to similar values with both learning rates.",
            "[G1] App. D, [G2] App. E.3",
            "1 less the absolute log2 of the ratio of the errors of α = 0.01 in the last quarter",
            ends_alike,
            too_short=still_moves,
        ),
    ),
)
