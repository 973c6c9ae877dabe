"""What is shown and claimed of word vectors, on results that were made up."""

from __future__ import annotations

from typing import Any

import pytest
from reproduction.claims import judge
from reproduction.experiment import Runs
from reproduction.gramian.words.experiment import (
    ALONE,
    CLAIMS,
    EXPERIMENT,
    FLOOR,
    PEER,
    SAMPLING,
    SOGRAM,
    above_floor,
    panels,
    tables,
)
from reproduction.gramian.words.judgements import KINDS, PAIRS
from reproduction.results import Result
from tests.support.reproduction_results import result, runs_of

RHO = {SOGRAM: 0.5, SAMPLING: 0.4, ALONE: 0.1, PEER: 0.6, FLOOR: 0.01}
ANSWERED = {SOGRAM: 0.3, SAMPLING: 0.35, ALONE: 0.0, PEER: 0.4, FLOOR: 0.0}


def words_result(label: str, seed: int = 0, by_frequency: float = 0.05) -> Result:
    """A result in which sets differ by .1 and kinds by .2 around the label's numbers."""
    rho, right = RHO[label], ANSWERED[label]
    reported: dict[str, Any] = {
        "similarity": {
            name: {"rho": rho + step, "pairs": 90, "of": 100}
            for name, step in zip(PAIRS, (-0.1, 0.0, 0.1), strict=True)
        },
        "mean_rho": rho,
        "analogies": {kind: {"accuracy": right, "questions": 40, "of": 200} for kind in KINDS},
        "accuracy": right + 0.01 * seed,
    }
    series: dict[str, Any] = {"reported": reported}
    if label == FLOOR:
        series["frequency"] = {name: {"rho": by_frequency} for name in PAIRS}
    if label in (SOGRAM, SAMPLING, ALONE):
        series["curve"] = {"epoch": [1, 2], "mean_rho": [rho / 2, rho], "accuracy": [0, right]}
    return result(label, seed, **series)


def made(seeds: int = 1, **more: Any) -> Runs:
    return runs_of([words_result(label, seed, **more) for seed in range(seeds) for label in RHO])


def test_the_tables_have_each_set_and_kind_with_its_coverage() -> None:
    similarity, analogies = tables(made())
    rows = {row[0]: row[1:] for row in similarity.rows}
    assert rows[SOGRAM] == ["0.400", "0.500", "0.600", "0.500"]
    assert rows["frequency of both words"] == ["0.050"] * 4
    assert rows["pairs"] == ["90 of 100"] * 3 + [""]
    rows = {row[0]: row[1:] for row in analogies.rows}
    assert rows[PEER] == ["40.0", "40.0", "40.0"]
    assert rows["questions"] == ["40 of 200 (20 %)"] * 2 + [""]


def test_the_panels_have_curves_of_what_is_trained_and_levels_of_the_rest() -> None:
    similarity, analogies = panels(made(2))
    lines = {line.label: line for line in analogies.lines}
    assert list(lines) == list(RHO)
    assert lines[SOGRAM].values == [[0, 30.0]] * 2
    assert lines[PEER].values == [[40.0, 40.0], [41.0, 41.0]]
    assert [line.label for line in similarity.lines if not line.dashed] == [SOGRAM]


def test_similarity_is_judged_by_the_better_floor() -> None:
    assert above_floor(made()) == [pytest.approx(0.45)]
    assert above_floor(made(by_frequency=-0.2)) == [pytest.approx(0.49)]


def test_each_claim_is_of_the_right_pair() -> None:
    margins = [judge(claim, made(2)).margins for claim in CLAIMS]
    assert margins[0] == pytest.approx([0.45, 0.45])
    assert margins[1] == pytest.approx([30, 30])
    assert margins[2] == pytest.approx([-5, -5])
    assert margins[3] == pytest.approx([0.1, 0.1])


def test_a_seed_that_is_not_whole_is_left_out() -> None:
    results = [words_result(label) for label in RHO] + [words_result(SOGRAM, 1)]
    assert len(above_floor(runs_of(results))) == 1
    assert len(panels(runs_of(results))[0].lines[0].values) == 1
    assert tables(runs_of([])) == []


@pytest.mark.parametrize("preset", EXPERIMENT.presets)
def test_the_presets_differ_in_the_estimator_alone(preset: str) -> None:
    one, two, alone, *_ = EXPERIMENT.presets[preset].trainings
    assert (one.program, one.recipe) == (two.program, two.recipe) == (alone.program, alone.recipe)
    same = {key for key in one.settings if not key.startswith("gramian.")}
    assert {key: one.settings[key] for key in same} == {key: two.settings[key] for key in same}
