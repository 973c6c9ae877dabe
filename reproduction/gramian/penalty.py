"""MAP@10 by λ. [G1] Fig. 6; [G2] Fig. 5."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from reproduction.claims import Claim
from reproduction.experiment import Experiment, Panel, Preset, Runs, Table, Training
from reproduction.gramian import map_series, methods
from reproduction.readings.map_over_time import MapOverTime
from reproduction.readings.score_distributions import ScoreDistributions

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
RATE = 0.1


def label(strength: float) -> str:
    return f"λ = {strength:g}"


def trainings(recipe: Path, rate: float, **settings: Any) -> tuple[Training, ...]:
    readings = MapOverTime(), ScoreDistributions()
    return tuple(
        Training(
            label(strength),
            recipe,
            {**methods.in_recipe(methods.sogram(rate)), "task.penalty": strength, **settings},
            readings,
        )
        for strength in STRENGTHS
    )


def tables(runs: Runs) -> list[Table]:
    return [map_series.table(runs)]


def panels(runs: Runs) -> list[Panel]:
    return map_series.panels(runs, by="step")


def folds_without(runs: Runs) -> list[float]:
    """Return log10 of the ratio of MAP@10 with λ = 10 and with 0.01, minus 1.5."""
    pairs = runs.pairs(label(10), label(0.01), map_series.tested)
    return [math.log10(max(high, 1e-9) / max(low, 1e-9)) - 1.5 for high, low in pairs]


def much_is_too_much(runs: Runs) -> list[float]:
    """Return a difference in points, because MAP@10 may be zero with λ = 1000."""
    pairs = runs.pairs(label(10), label(1000), map_series.final)
    return [100 * (right - much) for right, much in pairs]


EXPERIMENT = Experiment(
    "gramian/penalty",
    {"G1": "Figure 6", "G2": "Figure 5"},
    "MAP@10 by λ",
    "SOGram with six weights of the penalty on all pairs.",
    {
        "tiny": Preset(trainings(methods.TINY, RATE), methods.TINY_NOTE),
        "small": methods.on_wikispeedia(
            trainings(methods.SMALL, RATE, **{"training.epochs": 4, **methods.UNIFORM}),
            methods.UNIFORM_NOTE,
        ),
    },
    tables,
    panels,
    (
        Claim(
            "With λ = 10⁻² the validation MAP remains two orders of magnitude smaller than with "
            "λ = 10.",
            "[G1] App. B, [G2] App. D",
            "log10 of MAP@10 on test pairs with λ = 10 over that with λ = 0.01, less 1.5",
            folds_without,
            premise=map_series.below_popularity,
        ),
        Claim(
            "With λ = 10³ the model is over-regularized and the MAP decreases.",
            "[G2] App. D",
            "MAP@10 of λ = 10 less that of λ = 1000 at the end, points",
            much_is_too_much,
            premise=map_series.below_popularity,
        ),
    ),
)
