"""Internet scale is computed from the rates of a kept run, of the largest table of its dim."""

from __future__ import annotations

import re

import pytest
from benchmarks.instrument.runs import Measured, Run
from benchmarks.scale_model import Size, StepRates, memory, seconds
from benchmarks.scale_runs import Checked, figures, table

from benchmarks.instrument import scale_page

RATES = StepRates(1e-3, 1e-7, 2e-7, 3e-7, 5e-8, 4e-8, 1e-10, 1e-11)
SLOW = StepRates(*(50 * getattr(RATES, name) for name in StepRates.__dataclass_fields__))


def checked(size: Size, rates: StepRates, error: float) -> Checked:
    """Return a run that took `error` times what its rates predict."""
    resident = round(sum(memory(size).values()) * error)
    return Checked(size, [rates] * 3, [error * seconds(size, rates)] * 3, resident)


MEASURED = [
    checked(Size(1000, 5000, 128, 64), RATES, 1.0),
    checked(Size(9000, 5000, 128, 64), SLOW, 1.1),
    checked(Size(90_000, 5000, 32, 64), RATES, 1.5),
]
RUN = Run(
    "2026-11-22T21:27:24Z",
    {"processor": "a", "cores": 2, "memory": 2**34, "threads": 1},
    {},
    "81ad43d1b3",
    0.1,
    {"scale-model": Measured(0.1, 1.0, figures(MEASURED))},
)


def test_the_page_says_which_runs_the_model_meets() -> None:
    text = scale_page.pages([RUN])["internet-scale.md"]
    lines = [line for line in text.splitlines() if line.startswith("| N =")]
    assert len(lines) == 2 * 3  # their checks, and their parts
    assert lines[0].endswith("| seconds and bytes |")
    assert lines[1].endswith("| seconds and bytes |")
    assert lines[2].endswith("| neither |")
    assert "the rates that were measured for N = 9,000, D = 128, B = 64" in text
    assert "| tables | 512 |" in text


def test_slower_rates_take_more_hours() -> None:
    def hours(rates: StepRates) -> float:
        size = Size(9000, 5000, 128, 64)
        one = [checked(size, rates, 1.0)]
        run = Run(RUN.date, RUN.machine, {}, "", 0.1, {"scale-model": Measured(0, 1, figures(one))})
        text = scale_page.pages([run])["internet-scale.md"]
        (row,) = [x for x in text.splitlines() if re.match(r"\| 2 \| 128 \|", x)]
        return float(row.split("|")[6].replace(",", ""))

    assert hours(SLOW) > 1.2 * hours(RATES) > 0


def test_the_section_s_table_has_both_ratios() -> None:
    row = table(MEASURED).splitlines()[3]
    assert "| 0.91 |" in row
    assert MEASURED[1].ratios == pytest.approx([1 / 1.1] * 3)


def test_without_the_section_there_is_no_page() -> None:
    assert scale_page.pages([]) == {}
