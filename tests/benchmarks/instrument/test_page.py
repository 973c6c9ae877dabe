"""The pages are what the kept runs give, and say what they are of."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.instrument.figures import Figure
from benchmarks.instrument.runs import Measured, Run

from benchmarks import ROOT
from benchmarks.instrument import page, runs
from evergram.errors import DataError

DOCS = ROOT / "docs"
MACHINE = {"processor": "a processor", "cores": 2, "memory": 2**34, "threads": 1}
RUN = Run(
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
                Figure("small", "loop over bare step", "ratio", [0.9, 0.91, 0.89]),
                Figure("small", "bare step", "ms", [1.5]),
            ],
        )
    },
)


@pytest.mark.skipif(not runs.kept(), reason="no run of the benchmarks is kept yet")
def test_the_pages_are_what_the_kept_runs_give() -> None:
    for name, text in page.pages(runs.kept()).items():
        path = DOCS / name
        assert path.is_file(), "run: python -m benchmarks.instrument.page"
        if path.suffix == ".md":  # pictures differ with matplotlib; their values' hash is here
            assert path.read_text() == text, "run: python -m benchmarks.instrument.page"
        else:
            assert path.read_text().startswith("<svg")


def test_a_section_shows_its_run_its_values_and_its_picture(tmp_path: Path) -> None:
    runs.write(RUN, tmp_path / "results")
    written = page.write_pages(tmp_path / "docs", tmp_path / "results")
    assert {p.name for p in written} == {"benchmarks.md", "training-rate.svg"}
    text = (tmp_path / "docs" / "benchmarks.md").read_text()
    assert (
        "2026-11-22, commit 81ad43d1b3: a processor, 2 cores, 16 GiB, 1 thread(s); torch 2" in text
    )
    assert "| | loop over bare step | bare step, ms |" in text
    assert "| small | 0.9 (0.89–0.91) | 1.5 |" in text
    assert "busy" not in text
    picture = (tmp_path / "docs" / "benchmarks" / "training-rate.svg").read_text()
    assert "ratio of rates or of times (no unit)" in picture
    assert "loop over bare step" in picture


def test_other_values_change_the_page_and_a_busy_machine_is_said() -> None:
    (measured,) = RUN.sections.values()
    changed = [replace(measured.figures[0], values=[0.9, 0.91, 0.88]), measured.figures[1]]
    sections = {"training-rate": replace(measured, figures=changed, load=5.0)}
    one, other = (
        page.pages([run])["benchmarks.md"] for run in (RUN, replace(RUN, sections=sections))
    )
    marks = [re.findall(r"<!-- (\w+) -->", text) for text in (one, other)]
    assert marks[0] != marks[1]
    assert "**The machine was busy: load 0.1 when the run started and 5.0" in other


def test_without_runs_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--keep"):
        page.write_pages(tmp_path, tmp_path / "results")
