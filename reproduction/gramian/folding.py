"""Scores of observed and random pairs with λ = 0.01 and 10. [G1] Fig. 5; [G2] Fig. 4."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from reproduction.claims import Claim, Margins
from reproduction.experiment import Experiment, Line, Panel, Runs, Table
from reproduction.gramian import map_series, penalty
from reproduction.intervals import shown
from reproduction.results import Result

WEAK, STRONG = penalty.label(0.01), penalty.label(10)
PAIRS = ("observed", "random")
# The distance that counts as close, the share that counts as concentrated, and the score that
# counts as high.
NEAR, MOST, HALF = 0.25, 0.9, 0.5


def moments(result: Result) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = result.series["scores"]["moments"]
    return values


def mean_score(result: Result, pairs: str) -> float:
    """Return the mean score of observed or random pairs at the end."""
    return float(moments(result)[-1]["means"][PAIRS.index(pairs)])


def share(result: Result, least: float, most: float = math.inf) -> float:
    """Return the share of random pairs whose score is between two bounds at the end."""
    last = moments(result)[-1]
    edges, densities = last["edges"], last["random"]
    total = 0.0
    for low, high, density in zip(edges[:-1], edges[1:], densities, strict=True):
        total += density * max(0.0, min(high, most) - max(low, least))
    return total


def high_share(result: Result) -> float:
    return share(result, HALF)


def tables(runs: Runs) -> list[Table]:
    columns: dict[str, Callable[[Result], float]] = {
        "mean score, observed pairs": lambda r: mean_score(r, "observed"),
        "mean score, random pairs": lambda r: mean_score(r, "random"),
        "random pairs above 0.5": high_share,
        "an observed pair is above a random one": lambda r: moments(r)[-1]["separation"],
    }
    rows = [
        [label, *(shown([read(r) for r in runs.of(label)], 3) for read in columns.values())]
        for label in runs.labels
    ]
    return [Table("Scores at the end of training", ["", *columns], rows)]


def panels(runs: Runs) -> list[Panel]:
    made = []
    for label in (WEAK, STRONG):
        results = runs.of(label)
        if not results:
            return []
        every = moments(results[0])
        chosen = [every[i] for i in sorted({0, len(every) // 2, len(every) - 1})]
        for pairs in PAIRS:
            lines = [
                Line(f"epoch {m['epoch']}", m["edges"], [m[pairs]], steps=True) for m in chosen
            ]
            made.append(Panel(f"{label}, {pairs} pairs", "score ⟨u, v⟩", "density", lines))
    return made


def observed_near_one(runs: Runs) -> Margins:
    return {
        label: runs.values(label, lambda r: NEAR - abs(mean_score(r, "observed") - 1))
        for label in (WEAK, STRONG)
    }


def scores_still_rise(runs: Runs) -> str:
    """Return why the trainings cannot refute that observed pairs come close to 1, or ""."""
    means = [[m["means"][PAIRS.index("observed")] for m in moments(r)] for r in runs.of(STRONG)]
    rise = map_series.rise_of(means)
    return f"scores with {STRONG} still rise by {rise:.0f} % at the end" if rise else ""


def random_near_zero(runs: Runs) -> list[float]:
    return runs.values(STRONG, lambda r: 100 * (share(r, -NEAR, NEAR) - MOST))


def random_is_high_when_weak(runs: Runs) -> list[float]:
    return [100 * (weak - strong) - 10 for weak, strong in runs.pairs(WEAK, STRONG, high_share)]


EXPERIMENT = Experiment(
    "gramian/folding",
    {"G1": "Figure 5", "G2": "Figure 4"},
    "Scores of observed and random pairs by λ",
    "Densities of scores as training goes on (first seed); with a small λ unrelated pages fold "
    "onto each other. The trainings are those of `gramian/penalty`.",
    penalty.EXPERIMENT.presets,
    tables,
    panels,
    (
        Claim(
            "Scores of observed pairs remain concentrated around values close to 1, with either λ.",
            "[G1] App. B, [G2] App. D",
            "0.25 less the distance of their mean from 1, for each λ",
            observed_near_one,
            too_short=scores_still_rise,
        ),
        Claim(
            "With λ = 10 scores of random pairs concentrate around a value close to 0.",
            "[G1] App. B, [G2] App. D",
            f"share of random pairs within {NEAR} of 0, less {100 * MOST:.0f}, in %",
            random_near_zero,
        ),
        Claim(
            "With λ = 10⁻² a large proportion of random pairs has a high score.",
            "[G1] App. B, [G2] App. D",
            "share of random pairs above 0.5 with λ = 0.01 less that with λ = 10, less 10, in %",
            random_is_high_when_weak,
        ),
    ),
    runs_of=penalty.EXPERIMENT.name,
)
