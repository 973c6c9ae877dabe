"""Transforms fitted after the model, which [BC] does not compare."""

from __future__ import annotations

from reproduction.bc import figure5, methods
from reproduction.bc.columns import on_first, value
from reproduction.bc.methods import (
    KEEP_ALL,
    NAMES,
    POST_AFFINE,
    POST_CLOSED,
    POST_LAMBDA,
    POST_MLP,
    POST_ORTHOGONAL,
    POST_SINGLE,
    SHORT,
)
from reproduction.bc.table3 import trainings
from reproduction.claims import Claim
from reproduction.experiment import Experiment, Preset, Runs, Table, nothing
from reproduction.intervals import gain, separated, shown
from reproduction.results import Result

OTHERS = (POST_CLOSED, POST_AFFINE, POST_ORTHOGONAL, POST_LAMBDA, POST_MLP)
COMPARED = [KEEP_ALL, POST_SINGLE, *OTHERS]
# These methods have neither λ nor an epoch to select.
UNALIGNED = {
    "compare.methods": COMPARED,
    "upgrade.weight": None,
    "upgrade.select_after": None,
}


def closer(result: Result, method: str) -> float:
    """Return how much smaller a method's (3) is than Post-Lin-SLoss's, in percent."""
    return -gain(value(result, method, "error"), value(result, POST_SINGLE, "error"))


def tables(runs: Runs) -> list[Table]:
    """Return (2) and (3) of each transform, with paired differences of (3)."""
    rows = []
    for corpus in runs.labels:
        results = runs.of(corpus)
        margins = {method: [closer(r, method) for r in results] for method in OTHERS}
        found = separated(margins)
        for method in (POST_SINGLE, *OTHERS):
            lost, error = (
                [value(r, method, column) for r in results] for column in ("unintended", "error")
            )
            row = [SHORT[corpus], NAMES[method], shown(lost, 1), shown(error, 3)]
            smaller = f"{shown(margins[method], 1)} %" if method in margins else ""
            rows.append([*row, smaller, found.get(method, "")])
    header = ["", "", "(2)", "(3)", "(3) is smaller than Post-Lin-SLoss's by", "all together"]
    return [Table("Transforms by corpus", header, rows)]


EXPERIMENT = Experiment(
    "bc/transforms",
    {"BC": "§7"},
    "Transforms fitted after the model",
    "All are fitted to the same models, Keep-All's, so that (1) is 0. `post-affine` and "
    "`post-orthogonal` (Netflix's) are solved for, as "
    "`post-closed` is; `post-lambda-orthogonal` (λ-orthogonality, 0.1 ‖W Wᵀ − I‖²) and `post-mlp` "
    "(linear, with a hidden layer of 128 added) are trained by Adam as Post-Lin-SLoss is. The last "
    "column is with Holm's correction.",
    {
        "tiny": Preset(
            trainings({"synthetic": methods.TINY}, **{"compare.methods": COMPARED}),
            methods.TINY_NOTE,
        ),
        "small": Preset(figure5.on_two_corpora(UNALIGNED), methods.SWEPT_NOTE),
    },
    tables,
    nothing,
    (
        Claim(
            "More expressive transforms with non-linearity could improve the trade-off further.",
            "[BC] §7, future work",
            "how much higher (1)+(2) of `post-mlp` is than Post-Lin-SLoss's, points, Amazon Beauty",
            on_first(lambda r: value(r, POST_MLP, "total") - value(r, POST_SINGLE, "total")),
            "Its (3) is smaller, as the table shows, and consumers do not gain by it.",
        ),
    ),
)
