"""The claims on Gramian errors, on errors that were made up."""

from __future__ import annotations

import pytest
from reproduction.experiment import Runs
from reproduction.gramian.gramian_error import BASELINES, NAMES, SAGRAMS, SLOW, SOGRAM
from tests.support.reproduction_results import result, runs_of

from reproduction.gramian import averaging_error, gramian_error

# Errors as the papers draw them, for |B| = 128; those of 1,024 are half.
PAPERS = dict(zip(NAMES, (0.4, 0.32, 0.3, 0.15, 0.05, 0.06), strict=True))


def runs(errors: dict[str, float], factor: float = 0.5, gradient: float = 1.0) -> Runs:
    """Return runs whose second halves have these errors; their first halves are far off."""

    def series(scale: float) -> dict[str, list[float]]:
        return {
            f"{name} | {size}": [9.0, 9.0, scale * value * part, scale * value * part]
            for size, part in ((128, 1.0), (1024, factor))
            for name, value in errors.items()
        } | {"this run": [1.0] * 4}

    steps = {"step": [1, 2, 3, 4], "gramian": series(1.0), "gradient": series(gradient)}
    return runs_of([result(SLOW, errors=steps)])


def test_the_papers_order_confirms_their_claims() -> None:
    margins = {c.sentence: c.margins(runs(PAPERS)) for c in gramian_error.CLAIMS}
    assert all(m > 0 for each in margins.values() for m in each), margins


@pytest.mark.parametrize(
    ("name", "value", "margins"),
    [
        (SAGRAMS[0], 0.2, gramian_error.sagram_is_best),
        (SOGRAM, 0.31, gramian_error.sogram_beats_sampling),
        (BASELINES[1], 0.5, gramian_error.importance_beats_uniform),
        (SOGRAM, 0.2, gramian_error.small_batch_suffices),
    ],
)
def test_one_estimator_out_of_order_refutes_its_claim(
    name: str, value: float, margins: object
) -> None:
    assert callable(margins)
    assert margins(runs(PAPERS))[0] > 0
    assert margins(runs({**PAPERS, name: value}))[0] < 0


def test_a_margin_is_a_percentage_of_the_worse_error() -> None:
    assert gramian_error.sogram_beats_sampling(runs(PAPERS)) == [pytest.approx(50)]
    assert gramian_error.larger_is_better(runs(PAPERS)) == [pytest.approx(50)]
    assert gramian_error.larger_is_better(runs(PAPERS, factor=1.5))[0] < 0


def test_errors_alike_are_those_in_the_same_order() -> None:
    assert gramian_error.gradients_alike(runs(PAPERS, gradient=3)) == [pytest.approx(0.2)]
    assert gramian_error.gradients_alike(runs(PAPERS, gradient=-1)) == [
        pytest.approx(-1.8, abs=0.01)  # two of the errors are equal
    ]


def test_the_start_of_a_trajectory_is_left_out() -> None:
    (only,) = runs(PAPERS).of(SLOW)
    assert gramian_error.error(only, "gramian", SOGRAM, 1024) == pytest.approx(0.075)
    assert gramian_error.sizes_of(only) == (128, 1024)


def averages(by_rate: dict[float, list[float]]) -> Runs:
    series = {f"{gramian_error.sogram_name(r)} | 1024": v for r, v in by_rate.items()}
    steps = {"step": list(range(8)), "gramian": series, "gradient": series}
    return runs_of([result(SLOW, errors=steps)])


def test_bias_is_judged_early_and_variance_late() -> None:
    rates = gramian_error.RATES
    slow, fast = [0.9, 0.9, 0.5, 0.3, 0.2, 0.1, 0.1, 0.1], [0.4] * 8
    made = averages(dict.fromkeys(rates[:-1], slow) | {rates[-1]: fast})
    assert averaging_error.slow_is_biased_early(made) == [pytest.approx(0.5)]
    assert averaging_error.fast_varies_late(made) == [pytest.approx(0.3)]
    assert averaging_error.slowest_is_best_late(made) == [pytest.approx(0.0)]
