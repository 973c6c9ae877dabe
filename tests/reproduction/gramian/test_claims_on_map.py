"""The claims on MAP@10 of every experiment, on curves that were made up."""

from __future__ import annotations

from statistics import fmean

import pytest
from reproduction.catalogue import runs_of as runs_of_preset
from reproduction.experiment import Runs
from reproduction.gramian.gramian_error import RATES, sogram_name
from tests.support.reproduction_results import map_result, result, runs_of

from reproduction import results
from reproduction.gramian import (
    averaging_rate,
    batch_and_rate,
    folding,
    growth,
    movielens,
    penalty,
    rate_error,
    table2,
)


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


def test_table2_has_what_adaptive_sampling_costs_only_where_it_was_run() -> None:
    assert len(table2.tables(table2_runs())) == 2
    made, _, costs = table2.tables(table2_runs(**{table2.ADAPTIVE: 0.11}))
    # A made-up curve has one CPU second an evaluation.
    assert [row[0] for row in costs.rows] == [*table2.SAMPLING.values(), table2.ADAPTIVE]
    assert costs.rows[-1][1] == "3.0"
    gain = {row[0]: row for row in made.rows}[table2.ADAPTIVE][made.header.index("gain at the end")]
    assert gain == "+10.0 %"


def test_table2s_time_counts_in_full_where_a_baseline_is_never_reached() -> None:
    # .12 is above .10 at the second of three points, .9 × .12 = .108.
    assert table2.time_saved(table2_runs()) == [pytest.approx(30 - 200 / 3)]
    never = table2_runs(**{table2.SOGRAM["sqrt"]: 0.05})
    assert table2.time_saved(never) == [pytest.approx(-70)]


def test_table2_on_training_pairs() -> None:
    linear = table2.SOGRAM["linear"], table2.SAMPLING["linear"]
    runs = runs_of(
        [map_result(linear[0], [0.1], training=[0.2]), map_result(linear[1], [0.1], training=[0.4])]
    )
    assert table2.no_better_on_training(runs) == [pytest.approx(50)]


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
    assert penalty.folds_without(finals(values | {penalty.label(0.01): 0.05}))[0] < 0


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
    from reproduction.printed import printed

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


def test_ratings_are_judged_by_the_best_epoch() -> None:
    values = dict.fromkeys(movielens.LABELS.values(), 0.1)
    runs = finals(values | {movielens.SAMPLING: 0.11, movielens.NAMED: 0.121})
    assert movielens.best_gain(runs) == [pytest.approx(10)]
    assert movielens.named_is_best(runs) == [pytest.approx(10)]
    assert movielens.worse_on_training(runs) == [pytest.approx(-10)]


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


def test_what_is_remarked_of_gowalla_is_what_its_results_say() -> None:
    runs = runs_of_preset(table2.EXPERIMENT, "gowalla", results.FOLDER)
    assert len(runs.seeds) >= 5
    on_test = {
        label: runs.values(label, lambda r: r.series["map"]["test"]["model"])
        for label in runs.labels
    }
    for sogram, sampling in table2.BASELINES.items():
        pairs = zip(on_test[sogram], on_test[sampling], strict=True)
        assert all(ours > theirs for ours, theirs in pairs), sogram
    means = [fmean(on_test[sogram]) for sogram in table2.BASELINES]
    assert max(means) < 1.05 * min(means)  # "hardly differ"
    assert all(margin < -50 for margin in table2.no_better_on_training(runs))  # "by far"
