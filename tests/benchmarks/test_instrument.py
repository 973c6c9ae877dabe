"""Figures, runs and their pages: read with units, compared by ratios, shown as they were kept."""

from __future__ import annotations

import json
import math
import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.instrument import machine, page, runs
from benchmarks.instrument.compare import Change, changes, table
from benchmarks.instrument.figures import Figure, figure_of, figures_of_table
from benchmarks.instrument.runs import Measured, Run

from benchmarks import ROOT, pairs, their_code
from evergram.errors import DataError

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


def test_json_keeps_six_digits_and_has_no_nan() -> None:
    text = json.dumps(Figure("a", "x", "s", [1 / 3, math.nan]).plain(), allow_nan=False)
    back = figure_of(json.loads(text))
    assert back.values[0] == 0.333333
    assert math.isnan(back.values[1])
    with pytest.raises(ValueError, match="no values"):
        figure_of({"row": "a", "column": "b", "unit": "s", "values": []})


KEPT = Run(
    "2026-11-22T21:27:24Z",
    {"processor": "a", "cores": 2},
    {"torch": "2"},
    "81ad43d1b3+",
    0.1,
    {"steps": Measured(0.1, 3.0, [Figure("a", "b", "ratio", [1.5, 2.0])])},
)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = runs.write(KEPT, tmp_path / "kept")
    assert path == tmp_path / "kept" / "20261122T212724-81ad43d1b3.json"
    assert runs.read(path) == KEPT
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert runs.write(KEPT, tmp_path / "one.json") == tmp_path / "one.json"


def test_the_last_run_is_chosen_for_each_section(tmp_path: Path) -> None:
    later = replace(KEPT, date="2026-12-01T00:00:00Z", sections={"growth": KEPT.sections["steps"]})
    for run in (later, KEPT):
        runs.write(run, tmp_path)
    (tmp_path / ".half.json.part").write_text("{")
    assert runs.kept(tmp_path) == [KEPT, later]
    assert runs.last_of_each(runs.kept(tmp_path)) == {"steps": KEPT, "growth": later}
    assert runs.kept(tmp_path / "nowhere") == []


def test_what_is_no_run_is_refused_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    whole = json.loads(runs.as_json(KEPT))
    for text, words in (
        ("{", "is no run"),
        ("[]", "is no run"),
        (json.dumps({**whole, "format": 9}), "has format 9"),
        (json.dumps({k: v for k, v in whole.items() if k != "load"}), "is no run"),
        (json.dumps({**whole, "sections": {"a": {"load": 1}}}), "is no run"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            runs.read(path)
    with pytest.raises(DataError, match="is no run"):
        runs.read(tmp_path / "absent.json")


RUN = Run("2026-11-22T21:27:24Z", {"processor": "a", "cores": 2}, {}, "81ad43d1b3", 0.1)


def run_of(*figures: Figure, load: float = 0.1, processor: str = "a") -> Run:
    measured = Measured(load, 1.0, figures)
    machine = {"processor": processor, "cores": 2}
    return replace(RUN, machine=machine, load=load, sections={"steps": measured})


def ratio(*values: float) -> Figure:
    return Figure("a", "x", "ratio", values)


@pytest.mark.parametrize(
    ("before", "now", "moved"),
    [
        ((1.0, 1.1, 1.05), (1.2, 1.25, 1.21), True),
        ((1.0, 1.3, 1.05), (1.2, 1.25, 1.21), False),  # inside what it varied before
        ((1.0, 1.0, 1.0), (1.1,), True),
        ((1.0, 1.0, 1.0), (1.0,), False),
        ((1.0,), (7.0,), None),
    ],
)
def test_moved_is_more_than_either_side_varies(
    before: tuple[float, ...], now: tuple[float, ...], moved: bool | None
) -> None:
    assert Change(ratio(*before), ratio(*now)).moved is moved


def test_noise_alone_is_seldom_marked_and_a_change_beyond_it_often() -> None:
    draw = random.Random(0)

    def share(shift: float, count: int) -> float:
        def drawn(middle: float) -> Figure:
            return ratio(*(draw.gauss(middle, 0.01) for _ in range(count)))

        return sum(bool(Change(drawn(1), drawn(1 + shift)).moved) for _ in range(4000)) / 4000

    assert share(0.0, 3) < 0.07
    assert share(0.0, 5) < 0.01
    assert share(0.1, 5) > 0.99


def test_only_ratios_that_both_have_are_compared() -> None:
    seconds = Figure("a", "time", "s", [1])
    before = run_of(ratio(2), seconds, Figure("gone", "x", "ratio", [1]))
    now = run_of(ratio(3), seconds, Figure("new", "x", "ratio", [1]))
    compared = changes(before.sections["steps"], now.sections["steps"])
    assert [(c.now.name, c.ratio) for c in compared] == [(("a", "x"), 1.5)]
    assert Change(ratio(0), ratio(1)).ratio is None


def test_the_table_says_what_moved_and_what_disturbed_it() -> None:
    quiet = run_of(ratio(1, 1.01, 1.02))
    lines = table("steps", quiet, run_of(ratio(2, 2, 2), load=3.0, processor="b")).splitlines()
    assert lines[2] == "| a | x | 1.01 (1–1.02) | 2 (2–2) | 1.980 | moved |"
    assert "busy now: load 3.0" in lines[4]
    assert "The machines differ: a, then b." in lines[5]
    assert len(table("steps", quiet, quiet).splitlines()) == 3
    assert "| no spread |" in table("steps", run_of(ratio(1)), run_of(ratio(1)))
    assert "times are not compared" in table("steps", run_of(), run_of())


def git(folder: Path, *arguments: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *name, *arguments], check=True, capture_output=True)


def test_a_changed_checkout_is_told_from_its_commit(tmp_path: Path) -> None:
    assert machine.commit(tmp_path) == ""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "file").write_text("one")
    git(folder, "add", "file")
    git(folder, "commit", "-q", "-m", "one")
    machine.commit.cache_clear()
    clean = machine.commit(folder)
    assert len(clean) >= 10
    (folder / "file").write_text("two")
    machine.commit.cache_clear()
    assert machine.commit(folder) == clean + "+"


DOCS = ROOT / "docs"
MACHINE = {"processor": "a processor", "cores": 2, "memory": 2**34, "threads": 1}
PAGED = Run(
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
    runs.write(PAGED, tmp_path / "results")
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


COMPARE = Path(__file__).resolve().parents[2] / "docs" / "compare.md"


def test_the_document_shows_what_the_kept_runs_give() -> None:
    text = COMPARE.read_text()
    shown = text.split("<!-- their-code -->\n")[1].split("\n<!-- end their-code -->")[0]
    assert shown == their_code.table(their_code.load())
