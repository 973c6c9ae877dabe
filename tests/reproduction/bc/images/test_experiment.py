"""What is shown and claimed of an upgrade of image encoders, on results that were made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from reproduction.bc.images.claims import CLAIMS
from reproduction.bc.images.columns import intended, unintended
from reproduction.bc.images.experiment import EXPERIMENT, tables
from reproduction.bc.images.heads import TRAINED
from reproduction.bc.images.roles import CLASSES_UNSEEN, SEEN, TASKS, UNSEEN
from reproduction.bc.images.upgrades import ENCODERS, HEADS, POST_ORTHOGONAL
from reproduction.bc.methods import EVERGRAM, FIX, KEEP_ALL, NAMES, NO_TRANS, NON_BC, POST_CLOSED
from reproduction.claims import judge
from reproduction.experiment import Runs
from reproduction.results import Result
from tests.support.reproduction_results import result, runs_of

METHODS = {
    ENCODERS: (FIX, KEEP_ALL, NON_BC, POST_CLOSED, POST_ORTHOGONAL),
    HEADS: (FIX, KEEP_ALL, NON_BC, *TRAINED),
}


def method_series(
    own: float = 0.6, index: float = 0.5, auc: float = 0.8, cascade: float = 0.6
) -> dict[str, Any]:
    """Measures of a method; those of unseen classes are a tenth less."""
    return {
        "own": {SEEN: own, UNSEEN: own - 0.1},
        "old index": {SEEN: index, UNSEEN: index - 0.1},
        "cascade": {SEEN: cascade, UNSEEN: cascade - 0.1},
        "itself": {SEEN: 0.9, UNSEEN: 0.8},
        "error": {SEEN: {"l2": 2.0, "relative": 0.2}, UNSEEN: {"l2": 3.0, "relative": 0.3}},
        "consumers": dict.fromkeys(TASKS, auc) | {CLASSES_UNSEEN: auc - 0.1},
    }


def images_result(seed: int = 0, changed: Mapping[str, dict[str, Any]] | None = None) -> Result:
    """A result of one seed.

    Args:
        changed: by "way/method", measures that differ.
    """
    series: dict[str, Any] = {
        way: {name: method_series() for name in names} for way, names in METHODS.items()
    }
    for path, values in (changed or {}).items():
        way, name = path.split("/")
        series[way][name] = series[way][name] | values
    return result("CIFAR-10", seed, **series)


def margins(runs: Runs) -> list[tuple[float, ...]]:
    return [judge(claim, runs).margins for claim in CLAIMS]


def test_there_is_a_row_for_each_method_of_both_ways() -> None:
    made = tables(runs_of([images_result(0), images_result(1)]))
    assert len(made) == 4
    for table, way in zip(made, (ENCODERS, ENCODERS, HEADS, HEADS), strict=True):
        assert [row[0] for row in table.rows] == [NAMES.get(m, m) for m in METHODS[way]]
    found, consumers = made[:2]
    searches = ["60.00", "50.00"], ["50.00", "40.00"], ["60.00", "50.00"], ["90.00", "80.00"]
    assert found.rows[0][1:] == [cell for search in searches for cell in search]
    assert consumers.rows[0][1:] == ["80.00"] * 4 + ["70.00", "0.00", "20.00", "30.00"]
    assert tables(runs_of([])) == []


def test_metrics_are_changes_from_keep_all_in_percent() -> None:
    less = method_series(own=0.57, auc=0.6)
    made = images_result(0, {f"{HEADS}/{EVERGRAM}": less})
    assert intended(made, HEADS, EVERGRAM) == pytest.approx(-5)
    assert intended(made, HEADS, KEEP_ALL) == 0
    # A mean of .58 over the tasks, where Keep-All has .78.
    assert unintended(made, HEADS, EVERGRAM) == pytest.approx(-100 * 0.2 / 0.78)
    assert unintended(made, ENCODERS, KEEP_ALL) == 0


@pytest.mark.parametrize(
    ("path", "values", "expected"),
    [
        (f"{ENCODERS}/{NON_BC}", method_series(auc=0.7), {0: 100 * 0.1 / 0.78}),
        (f"{ENCODERS}/{FIX}", method_series(own=0.55), {1: 5}),
        (f"{ENCODERS}/{POST_CLOSED}", method_series(index=0.52), {2: 2, 3: 2}),
        (f"{ENCODERS}/{POST_ORTHOGONAL}", method_series(auc=0.79), {4: 1 / 0.78}),
        (f"{HEADS}/{POST_CLOSED}", method_series(auc=0.75), {5: 5 / 0.78, 6: 5}),
        (f"{HEADS}/{NO_TRANS}", method_series(auc=0.82), {7: -2 / 0.78}),
        (f"{HEADS}/{EVERGRAM}", method_series(own=0.57), {9: 1 - 5}),
        (
            f"{HEADS}/{EVERGRAM}",
            method_series() | {"error": {SEEN: {"relative": 0.15}, UNSEEN: {"relative": 0.5}}},
            {8: 25},
        ),
        (f"{ENCODERS}/{POST_CLOSED}", method_series(cascade=0.57), {11: 1 - 5, 12: 1 - 6}),
        (f"{HEADS}/{KEEP_ALL}", method_series() | {"own": {SEEN: 0.6, UNSEEN: 0.45}}, {10: -5}),
    ],
)
def test_each_claim_is_of_the_right_pair(
    path: str, values: dict[str, Any], expected: dict[int, float]
) -> None:
    base = [0.0] * len(CLAIMS)
    base[9] = base[11] = base[12] = 1.0  # what is tolerated
    for number, margin in expected.items():
        base[number] = margin
    made = margins(runs_of([images_result(0, {path: values})]))
    assert [margin for (margin,) in made] == pytest.approx(base, abs=1e-9)


def test_claims_are_judged_over_seeds() -> None:
    seeds = [
        images_result(seed, {f"{ENCODERS}/{FIX}": method_series(own=0.5 + 0.001 * seed)})
        for seed in range(5)
    ]
    judgement = judge(CLAIMS[1], runs_of(seeds))
    assert judgement.verdict == "confirmed"
    assert judgement.margins == pytest.approx([10, 9.9, 9.8, 9.7, 9.6])
    assert judge(CLAIMS[1], runs_of(seeds[:2])).verdict == "not separable"


def test_the_small_preset_is_of_real_images_and_the_tiny_one_of_none() -> None:
    small, tiny = (EXPERIMENT.presets[name].trainings[0].program for name in ("small", "tiny"))
    assert small is not None
    assert tiny is not None
    assert "efficientnet" in small.__name__
    assert "images=None" in tiny.__name__
