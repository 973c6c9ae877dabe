"""The table, the sentences and the figures of a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.comparison_results import MEASURED, results

from evergram.evaluation.reports.comparison_report import (
    explanation,
    markdown,
    table_rows,
    write_comparison,
)


def test_the_table_and_the_figures(tmp_path: Path) -> None:
    comparison = results(MEASURED)
    assert table_rows(comparison)[1][:2] == ["new", "-12.50 ± 17.68"]
    text = markdown(comparison)
    assert "| new | -12.50 ± 17.68 | -37.50 ± 17.68 | -50.00 ± 0.00 | 0.750 ± 0.354 | 2.0 |" in text
    assert "Keep-All itself: recall@50 0.2250 ± 0.0354, ROC-AUC 0.8000 ± 0.0000." in text
    assert text.rstrip().endswith("Something is left out.")
    write_comparison(tmp_path, comparison)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"table.md", "over-time.png", "by-task.png", "by-lambda.png"}
    # One seed has no deviation, and a reference of 0 no percentage.
    one = {0: {name: {**r, "intended": {0: 0.0, 1: 0.0}} for name, r in MEASURED[0].items()}}
    assert table_rows(results(one))[1][1:3] == ["–", "-25.00"]


def test_a_figure_without_numbers_is_not_drawn_and_an_old_one_is_removed(tmp_path: Path) -> None:
    (tmp_path / "by-lambda.png").write_text("of an earlier comparison")
    comparison = {**results(MEASURED), "by_lambda": {}}
    comparison["by_task"] = {name: {} for name in comparison["by_task"]}
    write_comparison(tmp_path, comparison)
    assert {path.name for path in tmp_path.iterdir()} == {"table.md", "over-time.png"}
    assert (tmp_path / "over-time.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("seeds", "words"), [([0], "1 seed, "), ([0, 1], "2 seeds, ")])
def test_the_explanation_names_seeds_times_and_tasks(seeds: list[int], words: str) -> None:
    comparison = {**results(MEASURED), "seeds": seeds}
    first, *_, tasks, left_out = explanation(comparison)
    assert first == f"planted, {words}strict selection, versions at 0.5, 0.6, λ = 16 (unit paper)."
    assert tasks == "Consumer tasks: activity, pair-rating."
    assert left_out == "Something is left out."
