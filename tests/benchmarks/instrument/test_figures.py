"""Figures are read from tables with their units, and repeats are put together by name."""

from __future__ import annotations

import json
import math

import pytest
from benchmarks.instrument.figures import Figure, figure_of, figures_of_table, together

TABLE = """
| method | seconds | loop / bare | Recall@20 | rows a second |
|---|---|---|---|---|
| exact | 1,234.5 ± 3 | 0.5 | 0.31 | 7e3 |
| sampled | – | -2 | none | 12 |
| exact | 7 ms | 3 | 1 | 2 |

| peak | store |
|---|---|
| 10 rows | 48.0 MiB |
| share, % | 3 |
"""


def test_units_are_of_the_cell_its_column_or_its_row() -> None:
    units = {f.name: (f.unit, list(f.values)) for f in figures_of_table(TABLE)}
    assert units == {
        ("exact", "seconds"): ("s", [1234.5]),
        ("exact", "loop / bare"): ("ratio", [0.5]),
        ("exact", "Recall@20"): ("ratio", [0.31]),
        ("exact", "rows a second"): ("1/s", [7000]),
        ("sampled", "loop / bare"): ("ratio", [-2]),
        ("sampled", "rows a second"): ("1/s", [12]),
        ("exact (2)", "seconds"): ("ms", [7]),
        ("exact (2)", "loop / bare"): ("ratio", [3]),
        ("exact (2)", "Recall@20"): ("ratio", [1]),
        ("exact (2)", "rows a second"): ("1/s", [2]),
        ("10 rows", "store"): ("MiB", [48]),
        ("share, %", "store"): ("%", [3]),
    }
    assert {f.name for f in figures_of_table(TABLE) if not f.is_comparable} == {
        *(("exact", c) for c in ("seconds", "rows a second")),
        *(("exact (2)", c) for c in ("seconds", "rows a second")),
        *(("sampled", "rows a second"), ("10 rows", "store")),
    }


def test_repeats_are_the_values_of_one_figure() -> None:
    first = [Figure("a", "x", "ratio", [1]), Figure("b", "x", "s", [5])]
    second = [Figure("a", "x", "ratio", [3, 8])]
    assert together([first, second]) == [
        Figure("a", "x", "ratio", [1, 3, 8]),
        Figure("b", "x", "s", [5]),
    ]


def test_a_spread_takes_three_measurements() -> None:
    assert Figure("a", "x", "ratio", [1, 4]).spread is None
    figure = Figure("a", "x", "ratio", [1, 4, 2])
    assert (figure.spread, figure.middle) == (3, 2)


def test_json_keeps_six_digits_and_has_no_nan() -> None:
    text = json.dumps(Figure("a", "x", "s", [1 / 3, math.nan]).plain(), allow_nan=False)
    back = figure_of(json.loads(text))
    assert back.values[0] == 0.333333
    assert math.isnan(back.values[1])
    with pytest.raises(ValueError, match="no values"):
        figure_of({"row": "a", "column": "b", "unit": "s", "values": []})


def test_an_escaped_bar_is_of_its_cell() -> None:
    table = "| \\|B\\| | error, \\|B\\| = 2 |\n|---|---|\n| a | 3 |\n"
    assert [f.name for f in figures_of_table(table)] == [("a", "error, \\|B\\| = 2")]
