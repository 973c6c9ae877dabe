"""The rows of [BC]'s tables and figures."""

from __future__ import annotations

from reproduction.bc import figure3, figure4, figure5, table2, table3
from reproduction.row import DRAWING, GPU_HOURS, NO_DATA, Row

LARGE = f"{NO_DATA}, and {GPU_HOURS.removeprefix('needs ')}"
ROWS = (
    Row("bc/figure1", "The problem", {"BC": "Figure 1"}, DRAWING, DRAWING),
    Row("bc/figure2", "The framework", {"BC": "Figure 2"}, DRAWING, DRAWING),
    Row.of(table2.EXPERIMENT, NO_DATA),
    Row.of(table3.EXPERIMENT, LARGE),
    Row.of(figure3.EXPERIMENT, LARGE),
    Row.of(figure4.EXPERIMENT, LARGE),
    Row.of(figure5.EXPERIMENT, LARGE),
)
