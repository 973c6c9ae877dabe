"""The sentences and the table on how long models were trained."""

from __future__ import annotations

from typing import Any

from tests.support.comparison_results import MEASURED, length, results

from evergram.evaluation.reports.budget_report import budget_sentences, budget_table
from evergram.evaluation.reports.comparison_report import explanation, markdown


def trained(by_run: dict[str, dict[int, Any]]) -> dict[int, dict[str, Any]]:
    """Two seeds, of which the second has twice the gains and ten passes less."""
    seeds: dict[int, dict[str, Any]] = {}
    for seed, runs in MEASURED.items():
        seeds[seed] = {}
        for name, run in runs.items():
            models = {
                k: length(None if g is None else g * (1 + seed), 30 - 10 * seed)
                for k, g in by_run.get(name, {}).items()
            }
            seeds[seed][name] = {**run, "trained": models}
    return seeds


def test_every_model_has_its_gain_and_what_was_not_measured_is_said() -> None:
    comparison = results(trained({"keep-all": {0: 0.004, 1: 0.02}, "new": {1: None}}))
    assert budget_table(comparison) == [
        "| gain over the last 20% | passes | M_0 | M_1 |",
        "|---|---:|---:|---:|",
        "| keep-all | 20 to 30 | 0.8 % | 4.0 % |",
        "| new | 20 to 30 |  | not measured |",
    ]
    length_, plateau = budget_sentences(comparison)
    assert "20 to 30 passes over its interactions: 4 to 6 % of the 500 of [BC]'s code" in length_
    assert "1 to 1.5 % of its steps, which are of 2,048 pairs" in length_
    assert "less than 1% for 2 of 6 models, which end on a plateau; 2 do not" in plateau
    assert plateau.endswith("and of 2 it is not measured.")


def test_they_stand_under_the_table() -> None:
    comparison = results(trained({"keep-all": {0: 0.0}}))
    assert set(budget_sentences(comparison)) <= set(explanation(comparison))
    assert markdown(comparison).rstrip().endswith("| keep-all | 20 to 30 | 0.0 % |  |")


def test_nothing_recorded_is_said_to_be() -> None:
    assert budget_sentences(results(MEASURED)) == [
        "How long the models were trained was not recorded."
    ]
    assert budget_table(results(MEASURED)) == []
