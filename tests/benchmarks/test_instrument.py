"""Figures, runs and their pages: read from tables, kept, and shown as they were kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.instrument import runs, scale_page
from benchmarks.instrument.figures import Figure, figures_of_table
from benchmarks.instrument.runs import Measured, Run

from benchmarks import ROOT, pairs

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


def test_figures_are_the_first_numbers_of_the_cells_of_a_table() -> None:
    assert {f.name: list(f.values) for f in figures_of_table(TABLE)} == {
        ("exact", "seconds"): [1234.5],
        ("exact", "loop / bare"): [0.5],
        ("exact", "Recall@20"): [0.31],
        ("exact", "rows a second"): [7000],
        ("sampled", "loop / bare"): [-2],
        ("sampled", "rows a second"): [12],
        ("exact (2)", "seconds"): [7],
        ("exact (2)", "loop / bare"): [3],
        ("exact (2)", "Recall@20"): [1],
        ("exact (2)", "rows a second"): [2],
        ("10 rows", "store"): [48],
        ("share, %", "store"): [3],
    }


MACHINE = {"processor": "a processor", "cores": 2, "memory": 2**34, "threads": 1}
KEPT = Run(
    "2026-11-22T21:27:24Z",
    MACHINE,
    {"torch": "2"},
    "81ad43d1b3",
    0.1,
    {
        "training-rate": Measured(
            0.1,
            3.0,
            [
                Figure("small", "loop over bare step", [0.9, 0.91, 0.89]),
                Figure("small", "bare step", [1.5]),
            ],
        )
    },
)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = runs.write(KEPT, tmp_path / "kept")
    assert path == tmp_path / "kept" / "20261122T212724-81ad43d1b3.json"
    assert runs.read(path) == KEPT
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert runs.write(KEPT, tmp_path / "one.json") == tmp_path / "one.json"


def test_the_page_is_what_the_kept_runs_give(tmp_path: Path) -> None:
    written = scale_page.write_page(tmp_path)
    shown = ROOT / "docs" / written.name
    assert shown.read_text() == written.read_text(), "python -m benchmarks.instrument.scale_page"


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
