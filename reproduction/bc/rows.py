"""The rows of [BC]'s tables and figures."""

from __future__ import annotations

from reproduction.row import DRAWING, Row

ROWS = (
    Row("bc/figure1", "The problem", {"BC": "Figure 1"}, DRAWING, DRAWING),
    Row("bc/figure2", "The framework", {"BC": "Figure 2"}, DRAWING, DRAWING),
    Row("bc/table2", "The three corpora and their sizes", {"BC": "Table 2"}),
    Row("bc/table3", "Nine methods on three corpora", {"BC": "Table 3"}),
    Row("bc/figure3", "Three methods over time", {"BC": "Figure 3"}),
    Row("bc/figure4", "BC-Aligner's consumers over time", {"BC": "Figure 4"}),
    Row("bc/figure5", "Three methods by λ", {"BC": "Figure 5"}),
)
