"""Gramian error by α with two learning rates. [G1] Fig. 7; [G2] Fig. 8."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from statistics import fmean

from reproduction.claims import Claim
from reproduction.experiment import Experiment, Line, Panel, Preset, Runs, Table, Training
from reproduction.gramian import gramian_error, methods
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
    """Return how many % fewer steps α = 0.01 needs with the smaller learning rate to come within a
    quarter of the error that the larger one ends with."""
    margins = []
    for fast, slow in zip(*(runs.of(name) for name in FACTORS.values()), strict=True):
        before, after = (first_below(r, 1.25 * late(fast, JUDGED)) for r in (fast, slow))
        margins.append(100 * (1 - after / before))
    return margins


def first_below(result: Result, level: float) -> float:
    """Return the first measured step with an error of α = 0.01 below a level."""
    errors = result.series["errors"]
    pairs = zip(errors["step"], errors["gramian"][sogram_name(JUDGED)], strict=True)
    return float(next((step for step, error in pairs if error < level), errors["step"][-1]))


def not_settled(runs: Runs) -> str:
    def error(rate: float) -> float:
        return fmean(runs.values(FACTORS[1.0], partial(late, rate=rate)))

    return gramian_error.still_moves(error, JUDGED, OWN_RATE)


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
            "how many fewer steps α = 0.01 needs to come within a quarter of the error that the "
            "larger rate ends with, %",
            decays_sooner,
            "Errors are measured every 50 steps.",
        ),
        Claim(
            "The errors converge to similar values with both learning rates.",
            "[G1] App. D, [G2] App. E.3",
            "1 less the absolute log2 of the ratio of the errors of α = 0.01 in the last quarter",
            ends_alike,
            too_short=not_settled,
        ),
    ),
)
