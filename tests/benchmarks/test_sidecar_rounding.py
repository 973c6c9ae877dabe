"""The least that bits can leave, beside its formula; and the table."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks import sidecar_rounding


@pytest.mark.parametrize("bits", [1, 8, 30])
def test_of_equal_variances_each_bit_leaves_a_quarter_a_coordinate(bits: int) -> None:
    left = sidecar_rounding.least_left(torch.full((5,), 3.0, dtype=torch.float64), bits)
    assert left == pytest.approx(15 * 4 ** (-bits / 5))


def test_a_coordinate_below_the_water_is_left_whole() -> None:
    left = sidecar_rounding.least_left(torch.tensor([16.0, 0.5], dtype=torch.float64), 2)
    # Two bits bring 16 to 1, which is above the other.
    assert left == pytest.approx(1.5)


def test_a_path_leaves_less_and_more_than_the_least() -> None:
    rows = sidecar_rounding.tiny()
    (row,) = rows
    for alone, path, least in zip(
        row.errors["by itself"], row.errors["path"], row.least, strict=True
    ):
        assert least < path < alone
    shown = sidecar_rounding.table(rows)
    assert f"| 10.0% | {sum(row.errors['by itself']) / 2:.3f} |" in shown
    assert "| a → b |" in shown
    assert all(math.isfinite(value) for value in row.kept["path"])
