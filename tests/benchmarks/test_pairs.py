"""Figures of two checkouts are paired by row and column, and told apart only beyond noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import pairs

PRINTED = """
## steps

| method | seconds | share |
|---|---|---|
| exact | 1,234.5 ± 3 | 0.5 |
| sampled | – | -2 |
| exact | 7 | none |

| other | a |
|---|---|
| x | 1 |
"""


def test_figures_are_read_by_row_and_column() -> None:
    assert pairs.figures(PRINTED) == {
        ("exact", "seconds"): 1234.5,
        ("exact", "share"): 0.5,
        ("sampled", "share"): -2,
        ("exact (2)", "seconds"): 7,
        ("x", "a"): 1,
    }


def test_runs_alternate_and_only_common_figures_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    def run(checkout: Path, section: str, *, tiny: bool) -> dict[pairs.Cell, float]:
        order.append(checkout.name)
        only = {"new": ("added", "s"), "old": ("gone", "s")}[checkout.name]
        return {("step", "s"): float(len(order)), only: 1.0}

    monkeypatch.setattr(pairs, "run", run)
    compared = pairs.pairs(Path("old"), Path("new"), "steps", 3)
    assert order == ["old", "new", "new", "old", "old", "new"]
    assert compared == {("step", "s"): ([1, 4, 5], [2, 3, 6])}


def test_a_figure_has_changed_if_its_ranges_do_not_overlap() -> None:
    lines = pairs.table(
        "steps",
        {("a", "s"): ([1, 2, 3], [3, 4, 5]), ("b", "s"): ([1, 2], [4, 4.5])},
    ).splitlines()
    assert lines[2] == "| a | s | 2 (1–3) | 4 (3–5) | 2.00 |  |"
    assert lines[3].endswith("| 2.83 | changed |")


def test_a_folder_that_is_no_checkout_and_a_single_run_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, words in (
        ([str(tmp_path), "steps"], "is no checkout"),
        ([str(tmp_path), "steps", "--repeats", "1"], "noise shows from two runs on"),
    ):
        with pytest.raises(SystemExit):
            pairs.main(arguments)
        assert words in capsys.readouterr().err
