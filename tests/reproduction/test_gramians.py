"""The tables and claims on Gramian errors and on MAP@10, on results that were made up."""

from __future__ import annotations

import pytest
from reproduction.experiment import Runs
from reproduction.gramian import (
    averaging_error,
    averaging_rate,
    batch_and_rate,
    folding,
    gramian_error,
    growth,
    penalty,
    rate_error,
    table2,
)
from reproduction.gramian.adaptive_error import LINEAR, NAME, SUFFIX, trajectories_of
from reproduction.gramian.gramian_error import (
    BASELINES,
    FAST,
    NAMES,
    RATES,
    SAGRAMS,
    SLOW,
    SOGRAM,
    sogram_name,
)
from reproduction.printed import printed
from tests.support.reproduction_results import map_result, result, runs_of


def finals(values: dict[str, float]) -> Runs:
    """Return runs that rose evenly to these values."""
    return runs_of([map_result(name, [v / 2, v * 0.9, v]) for name, v in values.items()])


def table2_runs(**changes: float) -> Runs:
    values = dict.fromkeys(table2.SAMPLING.values(), 0.1)
    values |= dict.fromkeys(table2.SOGRAM.values(), 0.12)
    values |= dict.fromkeys(table2.BESIDE.values(), 0.5)
    values[table2.SOGRAM["linear"]] = 0.13
    return finals(values | changes)


def test_table2_is_judged_by_the_worst_sampler() -> None:
    assert table2.better_with_every_sampler(table2_runs()) == [pytest.approx(20)]
    worse = table2_runs(**{table2.SOGRAM["sqrt"]: 0.05})
    assert table2.better_with_every_sampler(worse) == [pytest.approx(-50)]
    assert table2.linear_sogram_is_best(table2_runs())[0] > 0
    better = table2_runs(**{table2.SOGRAM["uniform"]: 0.2})
    assert table2.linear_sogram_is_best(better)[0] < 0


def test_the_averaging_rate_is_slow_at_first_and_better_at_last() -> None:
    low, high = averaging_rate.LOWEST, averaging_rate.HIGHEST
    others = [x for x in averaging_rate.LABELS.values() if x not in (low, high)]
    curves = {low: [0.01, 0.2], high: [0.05, 0.1], averaging_rate.SAMPLING: [0.05, 0.15]}
    curves |= {name: [0.02, 0.1] for name in others}
    runs = runs_of([map_result(name, values) for name, values in curves.items()])
    assert averaging_rate.slower_at_first(runs) == [pytest.approx(0.04)]
    assert averaging_rate.better_at_last(runs) == [pytest.approx(100)]
    assert averaging_rate.best_beats_sampling(runs) == [pytest.approx(100 / 3)]


def test_the_penalty_is_needed_and_can_be_too_strong() -> None:
    values = {penalty.label(s): 0.02 for s in penalty.STRENGTHS}
    values |= {penalty.label(10): 0.1, penalty.label(0.01): 0.0001}
    assert penalty.folds_without(finals(values)) == [pytest.approx(1)]
    assert penalty.much_is_too_much(finals(values)) == [pytest.approx(8)]
    values[penalty.label(0.01)] = 0.05
    assert penalty.folds_without(finals(values))[0] < 0


def scored(label: str, observed: float, random: float, high: float) -> object:
    """A result whose scores have these means, and this share of random ones above one half."""
    edges, densities = [-0.5, 0.5, 1.5], [1 - high, high]
    moment = {"epoch": 1, "edges": edges, "observed": densities, "random": densities}
    moment |= {"means": [observed, random], "separation": 0.9}
    return result(label, scores={"moments": [moment]})


def test_folding_is_judged_by_means_and_by_the_share_of_high_scores() -> None:
    runs = runs_of(
        [
            scored(folding.WEAK, 0.95, 0.8, 0.7),  # type: ignore[list-item]
            scored(folding.STRONG, 0.9, 0.05, 0.02),  # type: ignore[list-item]
        ]
    )
    assert folding.observed_near_one(runs) == [pytest.approx(0.15)]
    assert folding.random_near_zero(runs) == [pytest.approx(0.2)]
    assert folding.random_is_high_when_weak(runs) == [pytest.approx(58)]
    assert folding.high_share(runs.of(folding.WEAK)[0]) == pytest.approx(0.7)


def test_the_papers_tables_3_and_4_confirm_what_is_said_of_them() -> None:
    """Two of three sentences: in a column of Table 4, at 0.02, α = 0.001 is not the best."""
    values = {}
    for size, name in zip(batch_and_rate.SIZES, ("G2 Table 3", "G2 Table 4"), strict=True):
        for factor, eta in batch_and_rate.FACTORS.items():
            for method in batch_and_rate.METHODS:
                key = method.removeprefix("SOGram, α = ")
                value = printed("gramian")[name]["map"][eta][key]
                values[batch_and_rate.label(method, size, factor)] = value
    runs = finals(values)
    assert batch_and_rate.slowest_is_best(runs) == [pytest.approx(100 * (0.1295 / 0.1331 - 1))]
    assert batch_and_rate.more_with_small_batches(runs)[0] < 0  # 156 % at |B| = 512 outweighs all
    assert batch_and_rate.robust_to_large_rates(runs)[0] > 20


def test_growth_compares_at_equal_steps_and_at_equal_time() -> None:
    made = []
    for size in growth.SIZES:
        for how in growth.PRECONDITION:
            high = 0.2 if size == growth.SIZES[-1] else 0.12
            for method, values, seconds in (
                (growth.SAMPLING, [0.05, 0.1], [1.0, 2.0]),
                (growth.SOGRAM, [0.08, high], [1.5, 3.0]),
            ):
                series = {"cpu_seconds": seconds, "fresh": values}
                made.append(result(growth.label(method, how, size), map=series))
    runs = runs_of(made)
    how = next(iter(growth.PRECONDITION))
    assert growth.gains(runs, how, 10_000, equal="steps") == [pytest.approx(20)]
    # The two seconds of sampling are a third of the way between SOGram's two measures.
    assert growth.gains(runs, how, 10_000, equal="time") == [pytest.approx(100 * (0.28 / 0.3 - 1))]
    assert growth.grows(runs) == [pytest.approx(80)]
    assert growth.gains_at_a_million(runs) == [pytest.approx(20)]


def test_a_smaller_learning_rate_is_judged_on_one_averaging_rate() -> None:
    made = []
    for name, value in zip(rate_error.FACTORS.values(), (0.4, 0.1), strict=True):
        series = {sogram_name(rate): [9.0, 9.0, 9.0, value] for rate in RATES}
        made.append(result(name, errors={"step": [1, 2, 3, 4], "gramian": series}))
    assert rate_error.smaller_steps_smaller_bias(runs_of(made)) == [pytest.approx(75)]


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


def test_one_estimator_out_of_order_refutes_its_claim() -> None:
    for name, value, margins in [
        (SAGRAMS[0], 0.2, gramian_error.sagram_is_best),
        (SOGRAM, 0.31, gramian_error.sogram_beats_sampling),
        (BASELINES[1], 0.5, gramian_error.importance_beats_uniform),
        (SOGRAM, 0.2, gramian_error.small_batch_suffices),
    ]:
        assert margins(runs(PAPERS))[0] > 0
        assert margins(runs({**PAPERS, name: value}))[0] < 0


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


SIZES = (128, 1024)


def adaptive_runs(*, adaptive: bool = True) -> Runs:
    def series(names: tuple[str, ...], value: float) -> dict[str, object]:
        errors = {f"{name} | {size}": [value] * 4 for name in names for size in SIZES}
        return {"step": [1, 2, 3, 4], "gramian": errors, "gradient": errors}

    rates = tuple(gramian_error.sogram_name(rate) for rate in gramian_error.RATES)
    made = [result(FAST, errors=series((*NAMES, *rates), 0.5))]
    if adaptive:
        small = {f"{name} | 128": [0.25] * 4 for name in (NAME, LINEAR)}
        steps = {"step": [1, 2, 3, 4], "gramian": small, "gradient": small}
        made.append(result(FAST + SUFFIX, errors=steps))
    return runs_of(made)


def test_the_second_training_is_no_trajectory_of_its_own() -> None:
    assert trajectories_of(adaptive_runs()) == [FAST]
    assert len(averaging_error.tables(adaptive_runs())) == 1
    assert {panel.title for panel in averaging_error.panels(adaptive_runs())} == {
        f"{FAST}, |B| = 1,024"
    }
    for claim in (*gramian_error.CLAIMS, *averaging_error.CLAIMS):
        assert claim.margins(adaptive_runs()) == claim.margins(adaptive_runs(adaptive=False))
