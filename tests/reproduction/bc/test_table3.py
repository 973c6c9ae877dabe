"""Table 3 has theirs beside ours, and says what the figures rest on."""

from __future__ import annotations

from typing import Any

from reproduction.experiment import Runs
from tests.support.reproduced_comparisons import comparison_result, theirs
from tests.support.reproduction_results import runs_of

from reproduction.bc import basis, methods, table3

MUSIC = "amazon-musical-instruments"


def made(corpus: str, seeds: int = 1, **more: Any) -> Runs:
    """Return runs in which (1) of all but Keep-All is a point higher with each seed."""
    figures = theirs("Grocery")
    results = []
    for seed in range(seeds):
        own = {
            method: {**f, "intended": f["intended"] + seed * (method != methods.KEEP_ALL)}
            for method, f in figures.items()
        }
        results.append(comparison_result(corpus, own, seed, **more))
    return runs_of(results)


def test_the_figures_of_the_same_corpus_stand_beside_ours() -> None:
    table = table3.corpus_table(made(MUSIC), MUSIC)
    assert "their Musical Instruments" in table.title
    rows = {row[0]: row for row in table.rows}
    assert set(rows) == set(methods.NAMES.values())
    assert rows["BC-Aligner"] == [
        "BC-Aligner", "-3.21", "-0.07", "-3.28", "0.130", "-2.96", "-0.65", "-3.62", "0.38",
    ]  # fmt: skip
    assert rows["evergram (ours)"][5:] == [""] * 4


def test_another_corpus_has_the_range_of_theirs() -> None:
    table = table3.corpus_table(made("films"), "films")
    assert "range" in table.title
    rows = {row[0]: row for row in table.rows}
    assert rows["Fix-M0"][5:] == ["-27.79 to -25.55", "0.00", "-27.79 to -25.55", "0.00"]


def test_the_basis_says_queries_budget_plateaus_and_deviation() -> None:
    table = basis.table(made("films", 3))
    (row,) = table.rows
    cells = dict(zip(table.header, row, strict=True))
    assert cells["seeds"] == "3"
    assert cells["users, items, interactions"] == "5,000, 400, 90,000"
    assert cells["test queries of a version"] == "2,500 to 4,000"
    assert cells["passes, of theirs"] == "20, 4 %"
    assert cells["steps, of theirs"] == "1 %"
    # Ten of eleven runs train a model.
    assert cells["models that end on a plateau"] == "30 of 30"
    assert cells["largest deviation of (1) over seeds"].startswith("1.00 points")


def test_the_basis_counts_what_was_not_measured_and_what_rose() -> None:
    model = {"passes": 20, "share_of_passes": 0.04, "last_gain": None, "on_plateau": None}
    rising = {**model, "passes": 30, "on_plateau": False, "share_of_steps": 0.02}
    trained = {"keep-all": {"0": {**model, "share_of_steps": 0.01}, "1": rising}}
    (row,) = basis.table(made("films", trained=trained)).rows
    assert row[-1] == "0 of 2 (1 not measured)"
    assert row[-2] == "1 to 2 %"
    assert row[5] == "–"
