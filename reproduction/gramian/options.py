"""What options of the penalty change that no figure of the papers shows. [G2] §4.1, App. B, C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduction.experiment import Experiment, Panel, Preset, Runs, Search, Table, Training
from reproduction.gramian import map_series, methods
from reproduction.intervals import separated
from reproduction.readings.map_over_time import MapOverTime

USUAL = "SOGram, α = 0.1"
SOGRAM = {"gramian.kind": "sogram", "gramian.rate": 0.1}
OPTIONS: Mapping[str, methods.Table] = {
    USUAL: SOGRAM,
    "SOGram, α by noise and drift": {"gramian.kind": "sogram", "gramian.rate": "auto"},
    "recursive momentum, α by noise and drift": {"gramian.kind": "storm", "gramian.rate": "auto"},
    "SAGram, β = 1/n": {"gramian.kind": "sagram"},
    "the last batch alone": {"gramian.kind": "sampled"},
    "exact Gramian": {"gramian.kind": "exact"},
    "prior: SVD of rank 32": {**SOGRAM, "prior.kind": "svd"},
    "observed pairs out of the penalty": {**SOGRAM, "task.sparse": "exclude"},
}
# What each is compared with.
OVER = dict.fromkeys(list(OPTIONS)[1:], USUAL)
STRENGTHS = (3.0, 10.0, 30.0)


def trainings(
    recipe: Path, strengths: Sequence[float] = (), **settings: Any
) -> tuple[Training, ...]:
    """Return a training with each option.

    Args:
        strengths: the values of λ that selection chooses each option's from.
    """
    trials = tuple({"task.penalty": strength} for strength in strengths)
    made = []
    for label, table in OPTIONS.items():
        own = table | methods.UNIFORM | settings
        search = Search(label, own, trials) if trials else None
        made.append(Training(label, recipe, own, (MapOverTime(),), search=search))
    return tuple(made)


def tables(runs: Runs) -> list[Table]:
    """Return MAP@10, which options are separable from what they change, and the chosen λ."""
    made = map_series.table(runs, OVER)
    found = separated({label: map_series.gains(runs, label, over) for label, over in OVER.items()})
    rows = [[*row, found.get(row[0], "")] for row in made.rows]
    both = Table(made.title, [*made.header, "all options together"], rows)
    return [both, map_series.chosen(runs, ("task.penalty",))]


def panels(runs: Runs) -> list[Panel]:
    return map_series.panels(runs, [USUAL], by="step")


EXPERIMENT = Experiment(
    "gramian/options",
    {"G2": "App. B, C"},
    "Options that the papers do not measure",
    "One option at a time. Gains are paired by seed, over SOGram with α = 0.1; the last column is "
    "with Holm's correction.",
    {
        "tiny": Preset(trainings(methods.TINY), methods.TINY_NOTE),
        "small": Preset(
            trainings(
                methods.RECIPES / "ratings-small.toml",
                STRENGTHS,
                **{
                    "data.path": "$EVERGRAM_DATA/movielens-latest-small/ml-latest-small.zip",
                    "task.target": None,
                    "training.layer_rate": 1e-3,
                    "training.evaluate_every": 2,
                },
            ),
            "610 users and 8,950 films of MovieLens latest-small; every rating is a pair with "
            "target 1. Four passes in batches of 512, uniform measure. λ of each option is the "
            "best of 3, 10 and 30 by MAP@10 on the validation pairs of a split of its own; rates "
            "are the same for all.",
        ),
    },
    tables,
    panels,
)
