"""The central claim as a curve: SOGram's gain over sampling as the catalogue grows. [G2] §4.3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from reproduction.claims import Claim
from reproduction.experiment import Experiment, Line, Panel, Preset, Runs, Table, Training
from reproduction.gramian import map_series, methods
from reproduction.intervals import gain, shown
from reproduction.readings.fresh_map import FreshMap
from reproduction.results import Result

RECIPE = methods.RECIPES / "planted.toml"
RATE = 0.1
SAMPLING, SOGRAM = "sampling", "SOGram"
SIZES = (10_000, 100_000, 1_000_000)


def label(method: str, size: int) -> str:
    return f"{method}, without preconditioner, {size:,} candidates"


@dataclass(frozen=True)
class Catalogue:
    """A planted corpus, and how long models of it are trained.

    Args:
        every: steps between two measures.
    """

    candidates: int
    queries: int
    interactions: int
    epochs: int
    every: int

    @property
    def planted(self) -> dict[str, int]:
        sizes = "candidates", "queries", "interactions"
        return {name: getattr(self, name) for name in sizes}

    @property
    def reading(self) -> FreshMap:
        return FreshMap(self.queries, self.candidates, self.every)


def trainings(catalogues: Mapping[int, Catalogue], **settings: Any) -> tuple[Training, ...]:
    """Return both methods on every catalogue.

    Args:
        catalogues: by the number of candidates that they stand for.
    """
    tables = {
        SAMPLING: methods.sampling("uniform"),
        SOGRAM: methods.sogram(RATE, "uniform"),
    }
    return tuple(
        Training(
            label(method, size),
            RECIPE,
            {
                **methods.in_recipe(table),
                "training.epochs": catalogue.epochs,
                "training.evaluate_every": catalogue.epochs,
                "training.precondition": 0.0,
                **settings,
            },
            (catalogue.reading,),
            catalogue.planted,
        )
        for size, catalogue in catalogues.items()
        for method, table in tables.items()
    )


def at_equal_time(result: Result, seconds: float) -> float:
    """Return MAP@10 after so many CPU seconds of training, between two measures in proportion."""
    series = result.series["map"]
    return float(np.interp(seconds, series["cpu_seconds"], series["fresh"]))


def gains(runs: Runs, size: int, *, equal: str) -> list[float]:
    """Return the gain of SOGram over sampling in % for each seed.

    Args:
        equal: "steps" compares after all steps, "time" within the CPU seconds of the faster.
    """
    seeds = set(runs.seeds)
    pair = [[r for r in runs.of(label(m, size)) if r.seed in seeds] for m in (SAMPLING, SOGRAM)]
    margins = []
    for sampling, sogram in zip(*pair, strict=True):
        seconds = min(r.series["map"]["cpu_seconds"][-1] for r in (sampling, sogram))
        if equal == "time":
            values = [at_equal_time(r, seconds) for r in (sogram, sampling)]
        else:
            values = [final(r) for r in (sogram, sampling)]
        margins.append(gain(*values))
    return margins


def final(result: Result) -> float:
    """Return MAP@10 of fresh interactions after the last step."""
    return map_series.final(result, "fresh")


def tables(runs: Runs) -> list[Table]:
    rows = []
    for size in SIZES:
        labels = [label(m, size) for m in (SAMPLING, SOGRAM)]
        bounds = [
            shown(runs.values(labels[0], partial(_fixed, name))) for name in ("popularity", "best")
        ]
        finals = [shown(runs.values(name, final)) for name in labels]
        both = [map_series.percent(gains(runs, size, equal=e)) for e in ("steps", "time")]
        rows.append([f"{size:,}", *bounds, *finals, *both])
    header = ["candidates", "popularity", "best there is", SAMPLING, SOGRAM]
    header += ["gain, equal steps", "gain, equal CPU time"]
    return [Table("Expected MAP@10 of fresh interactions at the end", header, rows)]


def _fixed(name: str, result: Result) -> float:
    return float(result.series["map"][name])


def panels(runs: Runs) -> list[Panel]:
    """Return SOGram's gains by the size of the catalogue, at equal steps and in equal time."""
    lines = [
        Line(f"equal {equal}", SIZES, [list(row) for row in zip(*by_size, strict=True)])
        for equal in ("steps", "time")
        if (by_size := [gains(runs, size, equal=equal) for size in SIZES])
    ]
    gain = "gain of SOGram over sampling, %"
    return [Panel("Planted catalogues", "candidates", gain, lines, log_x=True)]


def grows(runs: Runs) -> list[float]:
    largest, smallest = (gains(runs, size, equal="steps") for size in (SIZES[-1], SIZES[0]))
    return [a - b for a, b in zip(largest, smallest, strict=True)]


def gains_at_a_million(runs: Runs) -> list[float]:
    return gains(runs, SIZES[-1], equal="time")


# By the number of candidates. Epochs make up about ten thousand steps at every size: a larger
# catalogue has more interactions, as each of its candidates has one at least.
SMALL = {
    size: Catalogue(size, 40_000, 400_000, epochs, 1500)
    for size, epochs in zip(SIZES, (3, 3, 1), strict=True)
}
TINY = {size: Catalogue(60 * (i + 1), 40, 900, 2, 10) for i, size in enumerate(SIZES)}
PAPER = {size: Catalogue(size, 2 * size, 20 * size, 10, 10_000) for size in SIZES}
EXPERIMENT = Experiment(
    "gramian/growth",
    {"G1": "§4.3", "G2": "§4.3"},
    "The gain as the catalogue grows",
    "MAP@10 is of interactions yet to come, expected under the true probabilities, so that no "
    "held-out pair adds noise.",
    {
        "tiny": Preset(
            trainings(TINY, **{"training.batch_size": 64, "model.dim": 4, "split.share": 0.2}),
            methods.TINY_NOTE,
        ),
        "small": Preset(
            trainings(SMALL),
            "40,000 queries and clusters of fifty candidates on a sphere of eight dims, 400,000 "
            "interactions and one more for each candidate that nobody met; batches of 128, D = 32, "
            "λ = 10, about ten thousand steps at every size; uniform measure and samplers.",
        ),
        "paper": Preset(
            trainings(PAPER),
            "The same with twenty interactions for each candidate and ten passes, on a GPU.",
        ),
    },
    tables,
    panels,
    (
        Claim(
            "The improvement of SOGram over sampling is larger on larger corpora.",
            "[G1] §4.3, [G2] §4.3",
            "gain with a million candidates less that with ten thousand, % points, equal steps, "
            "one λ and rate for both",
            grows,
        ),
        Claim(
            "On very large corpora SOGram is better than sampling in the same time.",
            "[G1] §5, [G2] §5",
            "gain with a million candidates at equal CPU time, %, one λ and rate for both",
            gains_at_a_million,
        ),
    ),
)
