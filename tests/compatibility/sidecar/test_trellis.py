"""The best path through the trellis, beside all paths; and what it leaves of normal variables."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.compatibility.sidecar import coding as trellis
from evergram.compatibility.sidecar.coding import (
    MEMORY,
    MOST_BITS,
    TAPS,
    encode,
    first_level,
    level_places,
    normal_levels,
    rounding_errors,
    trellis_levels,
)


def level_of(codes: list[int], bits: list[int], memory: int) -> list[float]:
    """Return what codes stand for, code after code, by the definition."""
    levels, high, low = [], *TAPS[memory]
    for j, (code, count) in enumerate(zip(codes, bits, strict=True)):
        if j < (min(low) if low else len(bits)):
            # No code is looked back at: the nearest of 2^b.
            high_bit = sum(codes[j - i] & 1 for i in high if j >= i) % 2
            levels.append(float(normal_levels(count)[0][(code >> 1) * 2 + high_bit]))
            continue
        past = [codes[j - i] & 1 if j >= i else 0 for i in range(memory + 1)]
        subset = 2 * (sum(past[i] for i in high) % 2) + sum(past[i] for i in low) % 2
        own = trellis_levels()[2 ** (count + 1) - 4 : 2 ** (count + 2) - 4].tolist()
        levels.append(own[4 * (code >> 1) + subset])
    return levels


def cost(row: Tensor, levels: list[float], weights: Tensor) -> float:
    return float((weights * (row - torch.tensor(levels, dtype=torch.float64)).square()).sum())


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=8).filter(lambda bits: sum(bits) <= 12),
    st.sampled_from(sorted(TAPS)),
    st.integers(0, 1000),
)
def test_no_other_codes_are_nearer(bits: list[int], memory: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = 1.5 * torch.randn(3, len(bits), generator=draw, dtype=torch.float64)
    weights = torch.rand(len(bits), generator=draw, dtype=torch.float64)
    codes = encode(rows, weights, torch.tensor(bits), trellis_levels(), memory)
    places = level_places(codes, torch.tensor(bits), memory)
    every = list(product(*(range(2**count) for count in bits)))
    for row, own, read in zip(rows, codes.tolist(), trellis_levels()[places], strict=True):
        assert read.tolist() == level_of(own, bits, memory)
        least = min(cost(row, level_of(list(one), bits, memory), weights) for one in every)
        assert cost(row, read.tolist(), weights) == pytest.approx(least, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_it_leaves_less_of_normal_variables_than_rounding_each_alone(bits: int) -> None:
    rows = torch.randn(300, 64, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    counts = torch.full((64,), bits)
    codes = encode(rows, torch.ones(64), counts, trellis_levels())
    assert codes.shape == rows.shape
    left = float((rows - trellis_levels()[level_places(codes, counts)]).square().mean())
    alone = float(rounding_errors()[bits])
    # 4^-b is the least that b bits can leave (Shannon).
    assert 4.0**-bits < left < (0.87 if bits == 1 else 0.77) * alone


def test_levels_of_b_bits_begin_at_their_place_and_are_alike_on_both_sides() -> None:
    assert len(trellis_levels()) == 2040
    for bits in range(1, MOST_BITS + 1):
        alone, *_, start = first_level(torch.full((4,), bits)).tolist()
        assert torch.equal(
            trellis_levels()[alone : alone + 2 ** (bits + 1) : 2], normal_levels(bits)[0]
        )
        own = trellis_levels()[start : start + 2 ** (bits + 1)]
        assert bool((own.diff() > 0).all())
        torch.testing.assert_close(own, -own.flip(0), rtol=0, atol=1e-9)
        if bits > trellis.FITTED:
            assert torch.equal(own, normal_levels(bits + 1)[0])


def test_without_memory_each_coordinate_is_rounded_to_its_nearest_level() -> None:
    rows = torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    bits = torch.tensor([3, 2, 1])
    codes = encode(rows, torch.ones(3), bits, trellis_levels(), 0)
    for column, count in enumerate(bits.tolist()):
        nearest = (rows[:, column, None] - normal_levels(count)[0]).abs().argmin(1)
        assert codes[:, column].tolist() == nearest.tolist()


def test_rows_are_rounded_alike_in_any_block(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(23, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    bits, weights = torch.tensor([5, 4, 4, 3, 2, 2, 1, 1, 1]), torch.linspace(1, 0.1, 9)
    whole = encode(rows, weights, bits, trellis_levels())
    monkeypatch.setattr(trellis, "ROWS", 5)
    assert torch.equal(encode(rows, weights, bits, trellis_levels()), whole)
    assert encode(rows[:0], weights, bits, trellis_levels()).shape == (0, 9)
    assert encode(rows[:, :0], weights[:0], bits[:0], trellis_levels()).shape == (23, 0)


@pytest.mark.parametrize(("bits", "far"), [(2, 1e4), (4, 100.0), (4, 1e9)])
def test_a_far_coordinate_does_not_spoil_those_behind_it(bits: int, far: float) -> None:
    rows = torch.randn(200, 40, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    counts = torch.full((40,), bits)
    rest = torch.arange(40) != 6
    left = []
    for value in (0.0, far):
        rows[:, 6] = value
        read = trellis_levels()[
            level_places(encode(rows, torch.ones(40), counts, trellis_levels()), counts)
        ]
        left.append(float((rows - read)[:, rest].square().mean()))
    # To name its last level takes two of a path's bits, and no more is lost.
    assert left[1] < 1.1 * left[0]
    assert left[1] < 0.9 * float(rounding_errors()[bits])


def test_coordinates_without_weight_are_rounded_too() -> None:
    bits = torch.tensor([2, 2])
    codes = encode(torch.ones(4, 2).double(), torch.zeros(2).double(), bits, trellis_levels())
    assert bool((codes < 4).all())
    assert MEMORY in TAPS
