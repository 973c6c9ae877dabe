"""Memory of ranking: the measure itself, and its table."""

from __future__ import annotations

import sys

import pytest
import torch
from benchmarks.ranking_memory import Peaks, _peak_of, table


@pytest.mark.skipif(sys.platform != "linux", reason="the peak can be set back on Linux only")
def test_the_peak_is_of_what_ran_and_not_of_what_was_before() -> None:
    size = 64 << 20
    before = torch.ones(2 * size, dtype=torch.uint8)
    del before
    grown = _peak_of(lambda: torch.ones(size, dtype=torch.uint8))
    assert 0.9 * size < grown < 1.5 * size


def test_the_table_has_ratios_to_the_product_to_a_block_and_to_all_scores() -> None:
    (row,) = table([Peaks(2048, 16384, ranking=48 << 20, product=32 << 20)]).splitlines()[2:]
    assert row == "| 16,384 | 2,048 | 128.0 MiB | 32.0 MiB | 48.0 MiB | 1.5 | 1.5 | 0.38 |"
