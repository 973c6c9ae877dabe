"""A claim is confirmed, or refuted, only where an interval over seeds says so."""

from __future__ import annotations

import pytest
from reproduction.claims import Claim, judge
from reproduction.experiment import Runs
from tests.support.reproduction_results import result, runs_of


def claim(margins: list[float]) -> Claim:
    return Claim("A is better.", "[G2] §1", "A less B", lambda runs: margins)


@pytest.mark.parametrize(
    ("margins", "verdict"),
    [
        ([1.0, 1.1, 0.9], "confirmed"),
        ([-1.0, -1.1, -0.9], "refuted"),
        ([1.0, -1.0, 0.5], "not separable"),
        ([5.0], "not separable"),
        ([5.0, 5.0], "not separable"),
        ([0.0, 0.0, 0.0], "not separable"),
    ],
)
def test_the_verdict_follows_from_the_interval(margins: list[float], verdict: str) -> None:
    judgement = judge(claim(margins), runs_of([result("a")]))
    assert judgement.verdict == verdict
    assert (judgement.bounds is None) == (len(margins) < 3)


def test_what_was_not_measured_is_not_confirmed() -> None:
    assert judge(claim([9.0] * 5), None).verdict == "not measured"
    assert judge(claim([9.0] * 5), Runs([], [])).verdict == "not measured"
    assert judge(claim([]), runs_of([result("a")])).mean is None


def test_a_claim_half_of_whose_trainings_ran_is_not_measured() -> None:
    runs = runs_of([result("a", 0), result("b", 1)])
    assert runs.seeds == []
    assert judge(claim([1.0, 1.1, 0.9]), runs).verdict == "not measured"


def test_json_has_the_figures_that_the_verdict_follows_from() -> None:
    values = judge(claim([1.0, 1.1, 0.9]), runs_of([result("a")])).as_json()
    assert values["verdict"] == "confirmed"
    assert values["mean"] == pytest.approx(1.0)
    assert values["interval"][0] > 0
