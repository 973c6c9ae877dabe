"""Intervals over queries: their coverage, and a normal interval beside them."""

from __future__ import annotations

import pytest
import torch

from evergram.errors import DataError, ShapeError
from evergram.evaluation.judged.paired_bootstrap import bootstrap, paired_bootstrap


def drawn(seed: int, size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_interval_of_many_queries_is_the_normal_one() -> None:
    values = drawn(0, 2000)
    interval = bootstrap(values)
    half = 1.959964 * float(values.std()) / 2000**0.5
    assert interval.mean == pytest.approx(float(values.mean()), abs=1e-12)
    assert interval.low == pytest.approx(interval.mean - half, abs=0.05 * half)
    assert interval.high == pytest.approx(interval.mean + half, abs=0.05 * half)


def test_about_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    held = 0
    for seed in range(200):
        # Of a skewed value, as nDCG is: the square of a normal one, of mean 1.
        interval = bootstrap(drawn(seed, 100).square(), seed)
        held += interval.low <= 1 <= interval.high
    # With coverage 0.92 (skewed values cost some) these ends are 4 deviations away.
    assert 168 <= held <= 199


def test_a_paired_difference_is_narrower_than_its_parts() -> None:
    hard = drawn(1, 300)
    one, two = hard + 0.1 * drawn(2, 300) + 0.05, hard + 0.1 * drawn(3, 300)
    difference, alone = paired_bootstrap(one, two), bootstrap(one)
    assert difference.low > 0
    assert difference.high - difference.low < (alone.high - alone.low) / 4
    mirrored = paired_bootstrap(two, one)
    assert mirrored.low == pytest.approx(-difference.high)


def test_the_same_seed_gives_the_same_interval() -> None:
    assert bootstrap(drawn(4, 50), 7) == bootstrap(drawn(4, 50), 7)
    assert bootstrap(drawn(4, 50), 7) != bootstrap(drawn(4, 50), 8)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(DataError, match="no queries"):
        bootstrap(torch.zeros(0))
    with pytest.raises(ShapeError, match="one for each query"):
        bootstrap(torch.zeros(2, 2))
    with pytest.raises(ShapeError, match="same queries"):
        paired_bootstrap(torch.zeros(2), torch.zeros(3))
