"""Options of the penalty that no figure of the papers shows. [G2] §4.1, App. B, C."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reproduction.claims import Claim
from reproduction.experiment import Experiment, Panel, Preset, Runs, Search, Table, Training
from reproduction.gramian import map_series, methods
from reproduction.intervals import separated
from reproduction.readings.map_over_time import MapOverTime

USUAL = "the last batch alone"
BATCH = {"gramian.kind": "sampled"}
ESTIMATORS: Mapping[str, methods.Table] = {
    USUAL: BATCH,
    "SOGram, α = 0.1": {"gramian.kind": "sogram", "gramian.rate": 0.1},
    "SOGram, α by noise and drift": {"gramian.kind": "sogram", "gramian.rate": "auto"},
    "SAGram, β = 1/n": {"gramian.kind": "sagram"},
    "exact Gramian": {"gramian.kind": "exact"},
    "prior: SVD of rank 32": {**BATCH, "prior.kind": "svd"},
    "observed pairs out of the penalty": {**BATCH, "task.sparse": "exclude"},
}
# Softmax losses, which have a temperature instead of λ.
SOFTMAXES: Mapping[str, methods.Table] = {
    "softmax, logQ": methods.SOFTMAX,
    "softmax over all candidates": {**methods.SOFTMAX, "task.kind": "softmax_all"},
}
IDS, SOLVER = "the last batch alone, by ids alone", "alternating least squares, by ids alone"
# A factorization has neither features nor a layer.
BY_IDS: methods.Table = {
    "model.kind": "factorization",
    **dict.fromkeys(("model.input_dim", "model.hidden", "model.residual")),
    **dict.fromkeys(methods.RATE_KEYS[1:]),
}
SOLVED: methods.Table = {
    **BY_IDS,
    "training.optimizer": "als",
    **dict.fromkeys(("training.table_rate", "training.batch_size", "training.precondition")),
}
# The baseline of each option.
OVER = {**dict.fromkeys([*list(ESTIMATORS)[1:], *SOFTMAXES, IDS], USUAL), SOLVER: IDS}
OF_RATINGS: methods.Table = {
    "data.path": "$EVERGRAM_DATA/movielens-latest-small/ml-latest-small.zip",
    "task.target": None,
    "training.evaluate_every": 2,
}
RATES = (0.025, 0.01, 5e-4)


def trainings(recipe: Path, *, tried: bool = True, **settings: Any) -> tuple[Training, ...]:
    """Return a training with each option; with `tried`, each has nine trials."""
    rates = methods.RATE_KEYS, RATES
    solved = tuple(
        {"task.penalty": strength, "task.l2": l2}
        for strength in (3.0, 10.0, 30.0)
        for l2 in (0.0, 0.01, 0.1)
    )
    options = [
        *(
            (label, methods.UNIFORM | own, methods.trials(*rates))
            for label, own in ESTIMATORS.items()
        ),
        *(
            (label, own, methods.trials(*rates, methods.TEMPERATURES, "task.temperature"))
            for label, own in SOFTMAXES.items()
        ),
        (IDS, methods.UNIFORM | BATCH | BY_IDS, methods.trials(methods.RATE_KEYS[:1], RATES[:1])),
        (SOLVER, methods.UNIFORM | SOLVED, solved),
    ]
    made = []
    for label, own, trials in options:
        table = settings | own
        search = Search(label, table, trials) if tried else None
        made.append(Training(label, recipe, table, (MapOverTime(),), search=search))
    return tuple(made)


def tables(runs: Runs) -> list[Table]:
    """Return MAP@10, and which options are separable from the baseline; the chosen settings are in
    the results."""
    made = map_series.table(runs, OVER)
    found = separated({label: map_series.gains(runs, label, over) for label, over in OVER.items()})
    rows = [[*row, found.get(row[0], "")] for row in made.rows]
    return [Table(made.title, [*made.header, "all options together"], rows)]


def panels(runs: Runs) -> list[Panel]:
    return map_series.panels(runs, [USUAL], by="step")


def gain_of(label: str) -> Callable[[Runs], list[float]]:
    """Return a function that reads an option's gains over its baseline."""
    return lambda runs: map_series.gains(runs, label, OVER[label])


OURS = "ours, no claim of the papers"
CLAIMS = (
    Claim(
        "The exact Gramian finds more than that of the last batch alone.",
        OURS,
        "gain of MAP on test pairs, %",
        gain_of("exact Gramian"),
    ),
    Claim(
        "A factorization by ids alone finds more than towers with features.",
        OURS,
        "gain of MAP on test pairs, %, both with the last batch alone",
        gain_of(IDS),
    ),
    Claim(
        "Alternating least squares finds more than steps, both by ids alone.",
        OURS,
        "gain of MAP on test pairs, %",
        gain_of(SOLVER),
    ),
    Claim(
        "SOGram with a fixed α of 0.1 finds less than the last batch alone.",
        OURS,
        "loss of MAP on test pairs, %",
        lambda runs: [-x for x in map_series.gains(runs, "SOGram, α = 0.1", USUAL)],
    ),
)


EXPERIMENT = Experiment(
    "gramian/options",
    {"G2": "App. B, C"},
    "Options that the papers do not measure",
    "Each estimator, loss and solver with settings of its own. Gains are paired by seed, over the "
    "Gramian of the last batch alone; the last column is with Holm's correction.",
    {
        "tiny": Preset(trainings(methods.TINY, tried=False), methods.TINY_NOTE),
        "small": Preset(
            trainings(
                methods.RECIPES / "ratings-small.toml",
                **OF_RATINGS,
            ),
            "610 users and 8,950 films of MovieLens latest-small; every rating is a pair with "
            "target 1. Four passes in batches of 512, uniform measure. "
            + methods.CHOSEN_NOTE
            + " A softmax has a temperature in the place of λ, and the solver λ and l2.",
        ),
    },
    tables,
    panels,
    CLAIMS,
)
