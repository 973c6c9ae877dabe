"""Runs are compared by ratios alone, and what moved by more than it varies is marked."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from benchmarks.instrument.compare import Change, changes, table
from benchmarks.instrument.figures import Figure
from benchmarks.instrument.runs import Measured, Run

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
