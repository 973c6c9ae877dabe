"""The figures that the papers print, checked against one another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from reproduction.intervals import gain
from reproduction.printed import printed

FIGURES = printed("gramian")


def printed_gains() -> Iterator[tuple[str, float, float, float]]:
    """Yield what each gain is of: a name, the value, its baseline, and the gain in %."""
    for name in ("G1 Table 2", "G2 Table 3", "G2 Table 4"):
        for row, gains in FIGURES[name]["gain"].items():
            values = FIGURES[name]["map"][row]
            for column, printed_gain in gains.items():
                yield f"{name} {row} {column}", values[column], values["sampling"], printed_gain
    table = FIGURES["G2 Table 2"]
    for language, gains in table["gain"].items():
        for sampler, printed_gain in gains.items():
            values = table["sogram"][language][sampler], table["sampling"][language][sampler]
            yield f"G2 Table 2 {language} {sampler}", *values, printed_gain


@pytest.mark.parametrize("row", list(printed_gains()), ids=lambda row: row[0])
def test_a_printed_gain_is_that_of_the_printed_values(row: tuple[str, float, float, float]) -> None:
    _, value, baseline, printed_gain = row
    # The papers computed gains before rounding: four digits of a MAP of 0.03 are 0.3 %.
    rounding = 100 * 1e-4 / baseline
    assert gain(value, baseline) == pytest.approx(printed_gain, abs=rounding + 0.1)


@pytest.mark.parametrize("corpus", printed("bc")["Table 3"]["rows"])
def test_the_sum_of_both_degradations_is_the_printed_one(corpus: str) -> None:
    rows = printed("bc")["Table 3"]["rows"][corpus]
    assert len(rows) == 9
    for method, row in rows.items():
        both = row["intended"] + row["unintended"]
        assert both == pytest.approx(row["sum"], abs=0.011), method
    assert {c: len(r) for c, r in printed("bc")["Table 2"]["rows"].items()}[corpus] == 5


@pytest.mark.parametrize("paper", ["gramian", "bc"])
def test_every_entry_names_its_source(paper: str) -> None:
    for name, entry in printed(paper).items():
        assert name == "sources" or entry["source"]


def test_figures_without_printed_numbers_are_named() -> None:
    named = FIGURES["without numbers"]["figures"]
    assert "Figure 2" in named["G1"]
    assert "Figure 9" in named["G2"]
