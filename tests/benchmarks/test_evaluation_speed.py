"""Speed of ranking: what is measured, and its table."""

from __future__ import annotations

import torch
from benchmarks.evaluation_speed import Speed, measure, table


def test_all_sizes_are_measured_and_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    speeds = measure({50: 10, 300: 10}, (2, 3), (1,), 1)
    assert [(s.candidates, s.dim) for s in speeds] == [(50, 2), (50, 3), (300, 2), (300, 3)]
    assert all(s.seconds > 0 and s.ratio > 0 and s.product_ratio > 0 for s in speeds)
    assert torch.get_num_threads() == before


def test_the_table_has_a_rate_and_its_ratios() -> None:
    (row,) = table([Speed(10_000, 32, 2, 4096, 2.0, 1.456, 0.5)]).splitlines()[2:]
    assert row == "| 10,000 | 32 | 2 | 2,048 | 1.46 | 0.50 |"
