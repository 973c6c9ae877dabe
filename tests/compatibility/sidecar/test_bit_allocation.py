"""The bits of coordinates, beside every other way to give as many away."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.compatibility.sidecar.bit_allocation import allocated, bit_order
from evergram.compatibility.sidecar.normal_levels import MOST_BITS, rounding_errors

variances = st.lists(st.floats(1e-6, 1e3), min_size=3, max_size=3)


@settings(max_examples=20, deadline=None)
@given(variances, st.integers(0, 3 * MOST_BITS))
def test_no_other_bits_leave_less(values: list[float], budget: int) -> None:
    errors = rounding_errors().tolist()

    def left(bits: tuple[int, ...]) -> float:
        return sum(float(v * errors[b]) for v, b in zip(values, bits, strict=True))

    own = allocated(bit_order(torch.tensor(values, dtype=torch.float64)), budget)
    assert int(own.sum()) == budget
    assert int(own.min()) >= 0
    assert int(own.max()) <= MOST_BITS
    every = (b for b in product(range(MOST_BITS + 1), repeat=3) if sum(b) == budget)
    assert left(tuple(own.tolist())) == pytest.approx(min(map(left, every)), rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(variances, st.integers(0, 3 * MOST_BITS))
def test_larger_coordinates_have_no_fewer_bits(values: list[float], budget: int) -> None:
    falling = torch.tensor(sorted(values, reverse=True), dtype=torch.float64)
    bits = allocated(bit_order(falling), budget)
    assert bool((bits.diff() <= 0).all())


def test_a_coordinate_that_is_always_zero_has_a_bit_only_if_all_others_are_full() -> None:
    order = bit_order(torch.tensor([1.0, 0.0, 1e-9]))
    assert allocated(order, 2 * MOST_BITS).tolist() == [8, 0, 8]
    assert allocated(order, 2 * MOST_BITS + 1).tolist() == [8, 1, 8]
