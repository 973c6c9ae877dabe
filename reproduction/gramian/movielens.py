"""Regression on MovieLens ratings. [G1] App. E, Fig. 8; [G2] App. F, Fig. 9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproduction.claims import Claim, Margins
from reproduction.experiment import Experiment, Panel, Preset, Runs, Search, Table, Training
from reproduction.gramian import map_series, methods
from reproduction.readings.map_over_time import MapOverTime

SAMPLING = "sampling"
RATES = (0.001, 0.01, 0.1)
LABELS = {rate: f"SOGram, α = {rate}" for rate in RATES}
# The best one according to the papers.
NAMED = LABELS[0.1]
TINY: methods.Table = {"task.target": "value", "task.penalty": 1.0}


def trainings(recipe: Path, trials: methods.Trials = (), **settings: Any) -> tuple[Training, ...]:
    reading = (MapOverTime(),)
    tables = {SAMPLING: methods.sampling()}
    tables |= {label: methods.sogram(rate) for rate, label in LABELS.items()}
    made = []
    for label, table in tables.items():
        own = methods.in_recipe(table) | settings
        search = Search(label, own, trials) if trials else None
        made.append(Training(label, recipe, own, reading, search=search))
    return tuple(made)


def tables(runs: Runs) -> list[Table]:
    return [map_series.table(runs, dict.fromkeys(LABELS.values(), SAMPLING))]


def panels(runs: Runs) -> list[Panel]:
    return map_series.panels(runs, [SAMPLING])


def named_is_best(runs: Runs) -> Margins:
    return {other: map_series.gains(runs, NAMED, other) for other in runs.labels if other != NAMED}


def worse_on_training(runs: Runs) -> list[float]:
    return [-value for value in map_series.gains(runs, NAMED, SAMPLING, map_series.trained)]


EXPERIMENT = Experiment(
    "gramian/movielens",
    {"G1": "Figure 8", "G2": "Figure 9"},
    "Ratings of MovieLens",
    "The target of an observed pair is its rating; MAP@10 ranks held-out films, as in the papers.",
    {
        "tiny": Preset(trainings(methods.TINY, **TINY), methods.TINY_NOTE),
        "small": Preset(
            trainings(
                methods.RECIPES / "ratings-small.toml",
                methods.trials(methods.RATE_KEYS, (0.05, 0.02, 3e-4), (1.0, 3.0, 10.0)),
                **methods.UNIFORM,
            ),
            "The ratings of the first 2,687 users of MovieLens 25M, k = 35 as in the papers, "
            "batches of 512; Adagrad and Adam in place of SGD at 0.05. "
            f"{methods.UNIFORM_NOTE} {methods.CHOSEN_NOTE}",
        ),
    },
    tables,
    panels,
    (
        Claim(
            "The best validation MAP is achieved by SOGram with α = 0.1.",
            "[G1] App. E, [G2] App. F",
            "gain of its MAP on test pairs over each other method's, %",
            named_is_best,
            premise=map_series.below_popularity,
            too_short=map_series.too_few_steps(min(RATES)),
        ),
        Claim(
            "SOGram with α = 0.1 performs poorly on the training set.",
            "[G1] App. E, [G2] App. F",
            "how much lower its final training MAP is than sampling's, %",
            worse_on_training,
            premise=map_series.below_popularity,
        ),
    ),
)
