"""MAP@10 over time: gains, shares of time, tables and panels."""

from __future__ import annotations

import pytest
from tests.support.reproduction_results import map_result, runs_of

from reproduction.gramian import map_series

RUNS = runs_of(
    [
        map_result("sampling", [0.01, 0.02, 0.02, 0.02], training=[0.1, 0.2, 0.3, 0.4]),
        map_result("SOGram", [0.01, 0.03, 0.05, 0.04], training=[0.1, 0.1, 0.1, 0.2]),
    ]
)


def test_the_end_counts_and_not_the_best() -> None:
    (result,) = RUNS.of("SOGram")
    assert map_series.final(result) == 0.04
    assert map_series.best(result) == 0.05
    assert map_series.first(result) == 0.01
    assert map_series.gains(RUNS, "SOGram", "sampling") == [pytest.approx(100)]
    assert map_series.gains(RUNS, "SOGram", "sampling", "training") == [pytest.approx(-50)]


def test_the_share_of_time_is_that_of_the_first_value_above() -> None:
    (result,) = RUNS.of("SOGram")
    assert map_series.share_to_reach(result, 0.02) == 0.5
    assert map_series.share_to_reach(result, 0.03) == 0.75  # above, not equal
    assert map_series.share_to_reach(result, 0.9) is None


def test_a_table_has_the_papers_figures_beside_ours() -> None:
    table = map_series.table(RUNS, {"SOGram": "sampling"}, {"SOGram": (0.0266, 4.2)})
    sampling, sogram = table.rows
    assert sogram[0] == "SOGram"
    assert sogram[1:4] == ["0.0400", "0.0500", "0.2000"]
    assert sogram[-3:] == ["+100.0 %", "0.0266", "+4.2 %"]
    assert sampling[-3:] == ["", "", ""]
    assert len(table.header) == len(sogram)
    assert "theirs" not in map_series.table(RUNS).header


def test_panels_are_training_and_validation_with_dashed_baselines() -> None:
    training, validation = map_series.panels(RUNS, ["sampling"])
    assert (training.title, validation.title) == ("training", "validation")
    assert [line.dashed for line in validation.lines] == [True, False]
    assert validation.lines[1].values == [[0.01, 0.03, 0.05, 0.04]]
    assert validation.horizontal == "CPU seconds of training"
    assert map_series.panels(RUNS, by="step")[0].horizontal == "step"


def test_percentages_have_their_sign() -> None:
    assert map_series.percent([4.25]) == "+4.2 %"
    assert map_series.percent([-4.25]) == "-4.2 %"
    assert map_series.percent([]) == "–"
