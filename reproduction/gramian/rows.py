"""The rows of [G1]'s and [G2]'s tables and figures."""

from __future__ import annotations

from reproduction.gramian import (
    averaging_error,
    averaging_rate,
    batch_and_rate,
    folding,
    gramian_error,
    growth,
    movielens,
    penalty,
    rate_error,
    table2,
)
from reproduction.row import DRAWING, GPU_HOURS, NO_DATA, Row

# Wikipedia's dumps or MovieLens 10M, and hours of training each.
LARGE = f"{NO_DATA}, and hours of training"
ROWS = (
    Row("gramian/figure1", "The model", {"G1": "Figure 1", "G2": "Figure 1"}, DRAWING, DRAWING),
    Row(
        "gramian/table1",
        "Sizes of the corpora",
        {"G1": "Tables 1, 3", "G2": "Tables 1, 5"},
        NO_DATA,
        NO_DATA,
    ),
    Row.of(gramian_error.EXPERIMENT, LARGE),
    Row.of(averaging_error.EXPERIMENT, LARGE),
    Row.of(table2.EXPERIMENT, LARGE),
    Row.of(folding.EXPERIMENT, LARGE),
    Row.of(penalty.EXPERIMENT, LARGE),
    Row.of(averaging_rate.EXPERIMENT, LARGE),
    Row.of(rate_error.EXPERIMENT, LARGE),
    Row.of(batch_and_rate.EXPERIMENT, LARGE),
    Row.of(movielens.EXPERIMENT, LARGE),
    Row.of(growth.EXPERIMENT, GPU_HOURS),
)
