"""Quantiles that are matched: beside an optimal assignment, and as shares above thresholds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from evergram.compatibility import score_map
from evergram.compatibility.score_map import LEAST_PAIRS, ScoreMap
from evergram.errors import DataError, ShapeError


def drawn(seed: int, count: int = LEAST_PAIRS) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    then = draw.gamma(2.0, size=count)
    return np.tanh(then) + draw.normal(scale=0.3, size=count), then


def test_it_is_the_assignment_that_moves_scores_least(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.optimize import linear_sum_assignment

    monkeypatch.setattr(score_map, "LEAST_PAIRS", 60)
    now, then = drawn(0, 60)
    # Of all assignments of old scores to new ones, the cheapest in squares; by another algorithm.
    rows, columns = linear_sum_assignment(np.square(now[:, None] - then[None]))
    assert_allclose(ScoreMap.fit(now, then).apply(now[rows]), then[columns], rtol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(LEAST_PAIRS, 20_000), st.floats(0.0, 1.0))
def test_as_many_lie_above_a_threshold_as_then(seed: int, count: int, share: float) -> None:
    now, then = drawn(seed, count)
    mapped = ScoreMap.fit(now, then).apply(now)
    threshold = np.quantile(then, share)
    # Between the quantiles that are kept, a share is known to one part of them.
    slack = 2 + count / (score_map.EVEN - 1)
    assert abs((mapped >= threshold).sum() - (then >= threshold).sum()) <= slack
    order = np.argsort(now)
    assert (np.diff(mapped[order]) >= 0).all()


def test_each_of_the_largest_scores_is_kept() -> None:
    now, then = drawn(1, 50_000)
    mapped = np.sort(ScoreMap.fit(now, then).apply(now))
    assert_allclose(mapped[-score_map.LARGEST :], np.sort(then)[-score_map.LARGEST :], rtol=1e-12)


def test_beyond_what_was_seen_it_goes_on_and_stays_monotone() -> None:
    now, then = drawn(2)
    scores = ScoreMap.fit(now, then)
    high, low = now.max(), now.min()
    ends = scores.apply([low - 2, low - 1, low, high, high + 1, high + 2])
    assert (np.diff(ends) > 0).all()
    assert ends[4] - ends[3] == pytest.approx(then.std() / now.std())
    assert_allclose(ends[[2, 3]], [then.min(), then.max()], rtol=1e-12)


def test_equal_scores_get_one_score() -> None:
    now = np.repeat([0.0, 1.0], LEAST_PAIRS)
    then = np.arange(2.0 * LEAST_PAIRS)
    expected = [then[:LEAST_PAIRS].mean(), then[LEAST_PAIRS:].mean()]
    assert_allclose(ScoreMap.fit(now, then).apply([0.0, 1.0]), expected)


@pytest.mark.parametrize("side", ["top", "bottom", "middle"])
def test_scores_that_many_pairs_share_get_the_mean_over_all_of_them(side: str) -> None:
    """Far more pairs share a score than ranks of it are kept."""
    now, then = drawn(5, 100_000)
    low, high = {"top": (0.95, 1.0), "bottom": (0.0, 0.05), "middle": (0.4, 0.6)}[side]
    ends = np.quantile(now, [low, high])
    now[(now >= ends[0]) & (now <= ends[1])] = ends[0]
    tied = np.sort(now) == ends[0]
    mapped = ScoreMap.fit(now, then).apply(ends[0])
    assert mapped == pytest.approx(np.sort(then)[tied].mean(), rel=1e-12)


def test_rounding_leaves_a_map_of_equal_scores_ascending() -> None:
    """The mean of three times 0.1 is above 0.1 in floats, and the next score stands for 0.1."""
    now = np.concatenate([np.repeat(np.arange(400.0), 3), np.arange(400, 800.0)])
    then = np.where(now < 790, 0.1, 2.0)
    scores = ScoreMap.fit(now, then)
    assert (np.diff(scores.then) >= 0).all()
    assert ScoreMap.of_json(scores.as_json()).pairs == len(now)


def test_it_survives_json_and_a_damaged_one_is_refused() -> None:
    scores = ScoreMap.fit(*drawn(3))
    plain = json.loads(json.dumps(scores.as_json()))
    asked = np.linspace(-3, 3, 50)
    np.testing.assert_array_equal(ScoreMap.of_json(plain).apply(asked), scores.apply(asked))
    for key, value in (
        ("now", plain["now"][::-1]),
        ("then", plain["then"][:-1]),
        ("slope", float("nan")),
        ("slope", -1.0),
        ("pairs", None),
        ("now", [[1.0]]),
    ):
        with pytest.raises(DataError, match="not a score map"):
            ScoreMap.of_json({**plain, key: value})


def test_what_says_nothing_is_refused() -> None:
    now, then = drawn(4)
    with pytest.raises(ShapeError, match="of the same pairs"):
        ScoreMap.fit(now, then[1:])
    with pytest.raises(DataError, match="999 pairs have both scores"):
        ScoreMap.fit(now[:999], then[:999])
    with pytest.raises(DataError, match="not finite"):
        ScoreMap.fit(np.where(now == now[0], np.nan, now), then)
    for pair in ((np.ones_like(now), then), (now, np.ones_like(then))):
        with pytest.raises(DataError, match="are equal"):
            ScoreMap.fit(*pair)
