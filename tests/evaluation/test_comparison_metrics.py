"""The metrics of a comparison: degradation, drift, the length of trainings, quality of maps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evergram.compatibility.second_moments import SecondMoments
from evergram.evaluation.degradation import degradation
from evergram.evaluation.training_budget import Budget, last_gain, training_length
from evergram.evaluation.version_distance import VectorPairs, mapping_readings, overlap

POSITIVE = st.floats(0.05, 1.0)


def test_by_hand() -> None:
    metrics = degradation(
        {0: 0.2, 1: 0.1, 2: 0.1},
        {"late": {2: 0.6}, "early": {1: 0.7, 2: 0.5}},
        {0: 0.0, 1: 0.3, 2: 0.6},
        {0: 0.2, 1: 0.2, 2: 0.1},
        {"late": {2: 0.8}, "early": {1: 0.7, 2: 0.7}},
    )
    # (0.4 - 0.5) / 0.5, and not the mean of 0, -50 and 0.
    assert metrics.intended == pytest.approx(-20)
    assert metrics.intended_at == pytest.approx({0: 0, 1: -50, 2: 0})
    # Tasks: 0.6 and 0.6 beside 0.8 and 0.7: (0.6 - 0.75) / 0.75.
    assert metrics.unintended == pytest.approx(-20)
    assert metrics.unintended_at == pytest.approx({1: 0, 2: 100 * (0.55 - 0.75) / 0.75})
    assert metrics.total == pytest.approx(-40)
    assert metrics.error == pytest.approx(0.3)
    # Over k >= 1 it is (K + 1) / K as much.
    assert metrics.error_after_first == pytest.approx(0.3 * 3 / 2)
    assert metrics.by_task["early"] == pytest.approx({1: 0, 2: 100 * -0.2 / 0.7})


@pytest.mark.long
@given(st.lists(POSITIVE, min_size=1, max_size=5), st.data())
def test_a_method_that_equals_keep_all_costs_nothing(
    values: list[float], data: st.DataObject
) -> None:
    intended = dict(enumerate(values))
    tasks = {
        name: data.draw(st.dictionaries(st.integers(1, 4), POSITIVE, min_size=1))
        for name in data.draw(st.sets(st.sampled_from("abc")))
    }
    metrics = degradation(intended, tasks, dict.fromkeys(intended, 0.0), intended, tasks)
    assert metrics.intended == 0
    assert metrics.error == 0
    assert (metrics.unintended is None) == (not tasks)
    assert not any(metrics.unintended_at.values())
    assert not any(any(by.values()) for by in metrics.by_task.values())


def history(*values: float, every: int = 1) -> list[dict[str, float]]:
    return [{"epoch": (i + 1) * every, "recall@50": value} for i, value in enumerate(values)]


def test_a_length_is_a_share_of_the_reference_on_the_same_pairs() -> None:
    length = training_length(
        Budget(30, 16_384), Budget(500, 2048), 16_384 * 2, history(0.1, 0.2), "recall@50"
    )
    assert length.passes == 30
    assert length.share_of_passes == pytest.approx(0.06)
    assert length.share_of_steps == pytest.approx(30 * 2 / (500 * 16))
    assert length.on_plateau is None  # no evaluation is of the last fifth


def test_the_gain_is_of_the_last_fifth_over_the_best_before() -> None:
    for values, gain in [
        ((0.1, 0.2, 0.3, 0.4, 0.5), 0.25),
        ((0.1, 0.2, 0.3, 0.4, 0.402), 0.005),
        ((0.1, 0.5, 0.3, 0.4, 0.45), 0.0),  # the best came before
    ]:
        assert last_gain(history(*values), "recall@50", 5) == pytest.approx(gain)
        length = training_length(Budget(5, 1), Budget(5, 1), 9, history(*values), "recall@50")
        assert length.on_plateau is (gain < 0.01)


def test_overlap_counts_shared_neighbours() -> None:
    candidate = torch.eye(4)
    query = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    other = torch.tensor([[4.0, 1.0, 2.0, 3.0]])
    # {0, 1} against {0, 3}
    assert overlap(query, candidate, other, candidate, k=2) == 0.5
    assert overlap(query, candidate, query, candidate, k=2) == 1.0
    assert overlap(query, candidate, other, candidate, k=10) == 1.0


def test_a_perfect_map_keeps_all_and_doing_nothing_what_it_does() -> None:
    draw = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=draw))[0][:4]
    new = torch.randn(400, 6, generator=draw)
    old = new @ turn.T + 1
    held = SecondMoments(4, 6)
    held.add(old[:50], new[:50])
    sides = VectorPairs(old[:50], new[:50]), VectorPairs(old[50:], new[50:])
    readings = mapping_readings({"exact": (turn, torch.ones(4))}, held, *sides)
    assert readings["exact"]["cosine"] == pytest.approx(1, abs=1e-5)
    assert readings["exact"]["relative_error"] < 1e-5
    assert readings["exact"]["overlap@10"] > 0.99
    assert readings["exact"]["overlap@10_own_queries"] > 0.99
    raw = new[:50, :4]
    cosine = torch.nn.functional.cosine_similarity(raw, old[:50]).mean()
    assert readings["as_is"]["cosine"] == pytest.approx(float(cosine), abs=1e-5)
    error = (raw - old[:50]).square().sum() / old[:50].square().sum()
    assert readings["as_is"]["relative_error"] == pytest.approx(float(error.sqrt()), rel=1e-5)
    assert readings["as_is"]["overlap@10_own_queries"] < 0.3
