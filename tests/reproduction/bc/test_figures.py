"""Figures 3 to 5: their lines, and the claims on them."""

from __future__ import annotations

from typing import Any

import pytest
from reproduction.bc.methods import ALIGNER, JOINT, JOINT_SINGLE, NAMES, NO_TRANS
from reproduction.experiment import Runs
from reproduction.results import Result
from tests.support.reproduced_comparisons import comparison_result, theirs
from tests.support.reproduction_results import runs_of

from reproduction.bc import figure3, figure4, figure5

FIGURES = theirs("Musical Instruments")
STRENGTHS = (1.0, 16.0, 32.0)


def runs(**more: Any) -> Runs:
    return runs_of(
        [comparison_result("a", FIGURES, seed, strengths=STRENGTHS, **more) for seed in range(3)]
    )


def with_errors(by_method: dict[str, list[float]]) -> Result:
    """A result whose errors are these at versions 0, 1 and 2."""
    only = comparison_result("a", FIGURES)
    for method, errors in by_method.items():
        over_time = only.series["comparison"]["methods"][method]["over_time"]
        over_time["error"] = {str(k): e for k, e in enumerate(errors)}
    return only


def test_figure_3_has_three_methods_and_ours_for_each_metric() -> None:
    panels = figure3.panels(runs())
    assert [panel.vertical for panel in panels] == list(figure3.VERTICAL.values())
    for panel in panels:
        assert [line.label for line in panel.lines] == [NAMES[m] for m in JOINT]
    intended, unintended, _ = panels
    assert intended.lines[0].x == [0.5, 0.6, 0.7]
    assert unintended.lines[0].x == [0.7]  # tested from version 2 on
    assert unintended.lines[0].values == [(-0.8,)] * 3
    tables = figure3.tables(runs())
    assert tables[1].rows[0] == ["a", "Joint-NoTrans", "", "", "-0.80 ± 0.00"]


def test_an_error_that_grows_more_is_seen() -> None:
    sharp = with_errors({JOINT_SINGLE: [0, 1, 3], ALIGNER: [0, 2, 3]})
    assert figure3.multi_grows_less(sharp) == pytest.approx(1.5)
    ours = with_errors({"evergram": [0, 1, 1], ALIGNER: [0, 1, 3]})
    assert figure3.ours_grows_less(ours) == pytest.approx(2)


def test_the_best_over_time_is_counted_over_metrics_and_later_versions() -> None:
    # (1) at versions 1 and 2, (2) at 2, (3) at 1 and 2: of the paper's averages all five are won.
    assert figure3.aligner_is_best_over_time(comparison_result("a", FIGURES)) == 50
    lost = with_errors({NO_TRANS: [0, 0.1, 0.9]})
    assert figure3.aligner_is_best_over_time(lost) == pytest.approx(80 - 50)


def test_figure_4_has_a_line_for_each_task_and_keep_alls() -> None:
    (panel,) = figure4.panels(runs())
    assert [(line.label, line.dashed) for line in panel.lines] == [
        ("Keep-All", True),
        ("activity", False),
    ]
    assert figure4.tables(runs())[0].rows == [["a", "activity", "", "", "-0.65 ± 0.00"]]


def test_a_task_that_falls_is_not_stable() -> None:
    only = comparison_result("a", FIGURES)
    method = only.series["comparison"]["methods"][ALIGNER]
    method["by_task"] = {"x": {"1": -1.0, "2": -4.0}, "y": {"1": -5.0, "2": 1.0}}
    assert figure4.tasks_are_stable(only) == pytest.approx(2 - 3)
    method["by_task"] = {"y": {"1": -5.0, "2": 1.0}}
    assert figure4.tasks_are_stable(only) == pytest.approx(2)


def test_figure_5_has_theirs_at_16_where_scales_are_alike() -> None:
    intended, _, error = figure5.panels(runs())
    assert intended.lines[0].x == [1.0, 16.0, 32.0]
    dashed = [line for line in intended.lines if line.dashed]
    assert [(line.label, list(line.x), line.values) for line in dashed][-1] == (
        "BC-Aligner, theirs", [16], [[-2.96]],
    )  # fmt: skip
    assert not any(line.dashed for line in error.lines)
    table = figure5.tables(runs())[0]
    assert list(table.header) == ["", "", "λ = 1", "λ = 16", "λ = 32"]
    assert len(table.rows) == 4 * len(JOINT)


def sweep(**by_column: tuple[float, float]) -> Result:
    """A result in which every method has these figures at λ = 1 and at 32."""
    only = comparison_result("a", FIGURES, strengths=(1.0, 32.0))
    for rows in only.series["comparison"]["sweep"].values():
        for place, weight in enumerate(("1", "32")):
            rows[weight] = {**rows[weight], **{c: v[place] for c, v in by_column.items()}}
    return only


def test_the_method_that_changes_least_decides() -> None:
    only = sweep(intended=(-1.0, -3.0), unintended=(-5.0, -1.0), error=(0.4, 0.1))
    assert figure5.large_costs(only) == pytest.approx(2)
    assert figure5.large_helps_consumers(only) == pytest.approx(4)
    assert figure5.large_is_closer(only) == pytest.approx(75)
    only.series["comparison"]["sweep"][NO_TRANS]["32"].update(intended=0.0, unintended=-6.0)
    assert figure5.large_costs(only) == pytest.approx(-1)
    assert figure5.large_helps_consumers(only) == pytest.approx(-1)
    only.series["comparison"]["sweep"]["evergram"]["32"].update(error=9.0)
    assert figure5.large_is_closer(only) == pytest.approx(75)  # ours is no method of theirs


def test_best_or_comparable_is_within_a_point() -> None:
    only = sweep(total=(-2.0, -3.0))
    assert figure5.aligner_is_often_best(only) == 1
    rows = only.series["comparison"]["sweep"]
    rows[NO_TRANS]["1"].update(total=-1.1)
    assert figure5.aligner_is_often_best(only) == 1
    rows[NO_TRANS]["1"].update(total=-0.9)
    assert figure5.aligner_is_often_best(only) == 0


def test_ours_is_compared_at_each_strength() -> None:
    only = sweep(total=(-2.0, -3.0), unintended=(-4.0, -1.0))
    assert figure5.ours_has_the_better_sum(only) == 0
    rows = only.series["comparison"]["sweep"]["evergram"]
    rows["1"].update(total=-1.0, unintended=-3.0)
    rows["32"].update(total=-7.0, unintended=-0.5)
    assert figure5.ours_has_the_better_sum(only) == pytest.approx((1 - 4) / 2)
    assert figure5.ours_is_better_for_consumers(only) == pytest.approx((1 + 0.5) / 2)
