"""A sidecar gives old vectors back; its levels, bits, paths and directions, by slow searches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.compatibility import Aligner
from evergram.compatibility.sidecar import coding
from evergram.compatibility.sidecar.coding import (
    MEMORY,
    MOST_BITS,
    TAPS,
    ResidualBasis,
    allocated,
    bit_order,
    encode,
    level_places,
    normal_levels,
    pack,
    packed_size,
    rounding_errors,
    trellis_levels,
    unpack,
)
from evergram.compatibility.sidecar.sidecar import SAMPLE, Sidecar
from evergram.errors import DataError, ShapeError

OLD, NEW, ROWS = 8, 11, 3000


def pairs(seed: int) -> tuple[Tensor, Tensor]:
    """Return new vectors, and old ones that are partly a map of them and partly their own."""
    draw = torch.Generator().manual_seed(seed)
    new = torch.randn(ROWS, NEW, generator=draw, dtype=torch.float64)
    own = torch.randn(ROWS, OLD, generator=draw, dtype=torch.float64) * torch.linspace(2, 0.1, OLD)
    return new, new @ torch.randn(NEW, OLD, generator=draw, dtype=torch.float64) / 3 + own


def fitted(seed: int, size: int, kind: str = "affine") -> tuple[Sidecar, Tensor, Tensor]:
    new, old = pairs(seed)
    affine = Aligner(kind).fit(new, old).as_transform().affine()
    assert affine is not None
    return Sidecar.fit(*affine, new, old, size), new, old


def measured(sidecar: Sidecar, new: Tensor, old: Tensor, read: Tensor) -> float:
    return float(((read - old).square().sum(1).mean() / old.square().sum(1).mean()).sqrt())


@pytest.mark.parametrize(("seed", "kind"), [(0, "linear"), (1, "affine"), (2, "orthogonal")])
def test_the_error_falls_with_the_bytes_and_is_the_one_that_it_says(seed: int, kind: str) -> None:
    errors = []
    for size in range(OLD + 1):
        sidecar, new, old = fitted(seed, size, kind)
        codes = sidecar.encode(new, old)
        assert codes.shape == (ROWS, size)
        assert sidecar.size == size
        errors.append(measured(sidecar, new, old, sidecar.read(new, codes)))
        assert sidecar.relative_error == pytest.approx(errors[-1], rel=1e-9)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02 * errors[0]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_it_leaves_much_less_than_as_many_coordinates_of_eight_bits(size: int) -> None:
    sidecar, new, old = fitted(0, size)
    full, _, _ = fitted(0, OLD)
    first = full.coordinates(new, old)
    first[:, size:] = 0
    alone = measured(full, new, old, full.read_coordinates(new, first))
    # Coordinates that are as large as the kept ones have bits, too: 4 OLD bits leave a few percent.
    assert sidecar.relative_error < (0.9 if size < 3 else 0.7) * alone


def test_all_coordinates_in_floats_are_the_old_vectors() -> None:
    sidecar, new, old = fitted(0, OLD)
    assert sidecar.rank == OLD
    read = sidecar.read_coordinates(new, sidecar.coordinates(new, old))
    torch.testing.assert_close(read, old, rtol=0, atol=1e-12)


def test_the_prediction_holds_for_objects_that_were_not_fitted_to() -> None:
    new, old = pairs(4)
    affine = Aligner("affine").fit(new[:2000], old[:2000]).as_transform().affine()
    assert affine is not None
    sidecar = Sidecar.fit(*affine, new[:2000], old[:2000], 3)
    new, old = new[2000:], old[2000:]
    error = measured(sidecar, new, old, sidecar.read(new, sidecar.encode(new, old)))
    assert error == pytest.approx(sidecar.relative_error, rel=0.05)


def test_a_coordinate_beyond_the_last_level_is_cut_off() -> None:
    sidecar, new, old = fitted(1, 2)
    for sign in (1, -1):
        code = sidecar.encode(new[:1], old[:1] + sign * 1e6 * sidecar.basis[:, 0])
        read = sidecar.read(new[:1], code)
        assert sidecar.offset is not None
        part = (read - new[:1] @ sidecar.weight.T - sidecar.offset) @ sidecar.basis[:, 0]
        most = normal_levels(int(sidecar.bits[0]))[0][-1] * sidecar.scales[0]
        assert float(part) == pytest.approx(sign * float(most))


def test_a_map_without_error_reads_the_old_vectors_with_any_bytes() -> None:
    new = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for size in range(5):
        sidecar = Sidecar.fit(torch.eye(4), None, new, new, size)
        assert sidecar.relative_error == pytest.approx(0, abs=1e-9)
        torch.testing.assert_close(sidecar.read(new, sidecar.encode(new, new)), new)


def test_objects_that_are_all_alike_are_read() -> None:
    new, old = torch.ones(3, 2), torch.tensor([[1.0, 2.0, 3.0]]).expand(3, 3)
    sidecar = Sidecar.fit(torch.zeros(3, 2), None, new, old, 2)
    read = sidecar.read(new, sidecar.encode(new, old))
    # One direction has all that is left; a level of 8 bits is near to the only value.
    torch.testing.assert_close(read, old, rtol=0.03, atol=0)


def test_wrong_input_is_refused() -> None:
    sidecar, new, old = fitted(0, 2)
    codes = sidecar.encode(new, old)
    refused: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: sidecar.read(new[:5], codes), ShapeError, "one row per vector"),
        (lambda: sidecar.read(new, codes.float()), ShapeError, "one row per vector"),
        (lambda: sidecar.read(new[:, :3], codes), ShapeError, "New vectors are"),
        (lambda: sidecar.encode(new, old[:5]), ShapeError, "Old vectors are"),
        (lambda: sidecar.encode(new, old * torch.nan), DataError, "NaN"),
        (lambda: Sidecar.fit(old[:0].T @ new[:0], None, new[:0], old[:0], 1), DataError, "no vec"),
        (lambda: fitted(0, -1), ShapeError, "0 to 8"),
        (lambda: fitted(0, OLD + 1), ShapeError, "0 to 8"),
    ]
    for call, error, named in refused:
        with pytest.raises(error, match=named):
            call()


@pytest.mark.parametrize("row", [0, 1])
def test_a_long_row_that_the_guess_has_or_has_not_changes_no_bytes(row: int) -> None:
    """Of twice as many objects as the guess looks at, every second one is looked at."""
    draw = torch.Generator().manual_seed(7)
    old = torch.randn(2 * SAMPLE, 12, generator=draw, dtype=torch.float64)
    old[row] *= 15
    new, weight = torch.zeros(len(old), 1, dtype=torch.float64), torch.zeros(12, 1)
    fits = [Sidecar.fit(weight, None, new, old, size) for size in range(13)]
    for error in (0.6, 0.18):
        fewest = min(fit.size for fit in fits if fit.relative_error <= error)
        assert Sidecar.fit_for_error(weight, None, new, old, error).size == fewest


@pytest.mark.parametrize(("dims", "falls"), [(2, 0.0), (2, 0.5), (8, 0.5), (24, 0.0)])
def test_a_few_coordinates_lose_next_to_nothing_by_a_path(dims: int, falls: float) -> None:
    draw = torch.Generator().manual_seed(0)
    scales = torch.exp(-falls * torch.arange(dims))
    old = torch.randn(2000, dims, generator=draw, dtype=torch.float64) * scales
    new = torch.zeros(2000, 1, dtype=torch.float64)
    for size in {1, dims // 2}:
        sidecar = Sidecar.fit(torch.zeros(dims, 1), None, new, old, size)
        alone = replace(sidecar, memory=0)
        read = alone.read(new, alone.encode(new, old))
        assert sidecar.relative_error < 1.015 * measured(alone, new, old, read)


def test_the_bytes_for_an_error_are_the_fewest_that_leave_no_more() -> None:
    _, new, old = fitted(2, 0)
    affine = Aligner("affine").fit(new, old).as_transform().affine()
    assert affine is not None
    for error in (0.5, 0.1, 0.02):
        sidecar = Sidecar.fit_for_error(*affine, new, old, error)
        assert sidecar.relative_error <= error
        assert Sidecar.fit(*affine, new, old, sidecar.size - 1).relative_error > error
        same = Sidecar.fit(*affine, new, old, sidecar.size)
        assert same.relative_error == sidecar.relative_error
    least = min(Sidecar.fit(*affine, new, old, size).relative_error for size in range(OLD + 1))
    with pytest.raises(DataError, match=rf"the lowest is {least:.2g}, with {OLD} bytes"):
        Sidecar.fit_for_error(*affine, new, old, 0.9 * least)
    with pytest.raises(DataError, match="nan"):
        Sidecar.fit_for_error(*affine, new, old, float("nan"))


@pytest.mark.parametrize(
    "change", [lambda a: a, lambda a: a[::-1], lambda a: a.astype(">f8"), np.asfortranarray]
)
def test_arrays_of_numpy_are_taken_and_returned(change: Any) -> None:
    _, new, old = fitted(1, 3)
    weight, offset = Aligner("affine").fit(new, old).as_transform().affine() or (None, None)
    assert weight is not None
    arrays = change(new.numpy()), change(old.numpy())
    tensors = [torch.from_numpy(np.array(a, dtype=np.float64, order="C")) for a in arrays]
    mine = Sidecar.fit(weight, offset, arrays[0], arrays[1], 3)
    expected = Sidecar.fit(weight, offset, tensors[0], tensors[1], 3)
    codes = mine.encode(*arrays)
    assert isinstance(codes, np.ndarray)
    np.testing.assert_array_equal(codes, expected.encode(*tensors).numpy())
    read = mine.read(arrays[0], codes)
    assert isinstance(read, np.ndarray)
    np.testing.assert_array_equal(read, expected.read(tensors[0], torch.from_numpy(codes)).numpy())
    with pytest.raises(ShapeError, match="Old vectors are"):
        Sidecar.fit(weight, offset, arrays[0], arrays[1][:5], 3)


CELLS = 600


def least_error(levels: int) -> float:
    """Return the least E(z − q)² of so many levels, by dynamic programming over the cells of a
    grid: the parts of the line are intervals of cells, and each has the best level of its own."""
    edges = np.linspace(-6, 6, CELLS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    mass = np.exp(-(middles**2) / 2)
    mass /= mass.sum()
    sums = [np.concatenate([[0.0], np.cumsum(mass * middles**p)]) for p in range(3)]
    starts, ends = np.meshgrid(np.arange(CELLS + 1), np.arange(CELLS + 1), indexing="ij")
    of_mass, of_first, of_second = (s[ends] - s[starts] for s in sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = np.where(ends > starts, of_second - of_first**2 / of_mass, np.inf)
    best = cost[0]
    for _ in range(levels - 1):
        best = (best[:, None] + cost).min(0)
    return float(best[CELLS])


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_no_other_levels_leave_less(bits: int) -> None:
    assert normal_levels(bits)[1] == pytest.approx(least_error(2**bits), rel=0.01)


def test_the_errors_are_those_of_max_and_each_bit_takes_away_less() -> None:
    # Max 1960, Table I, with 2, 4, 8, 16 and 32 levels.
    table = [0.3634, 0.1175, 0.03454, 0.009497, 0.002499]
    errors = rounding_errors()
    assert errors[:6].tolist() == pytest.approx([1.0, *table], rel=0.005)
    assert bool((-errors.diff() > 0).all())
    assert bool(((-errors.diff()).diff() < 0).all())


@pytest.mark.parametrize("bits", range(1, MOST_BITS + 2))
def test_the_error_is_that_of_rounding_to_the_nearest_level(bits: int) -> None:
    levels, error = normal_levels(bits)
    grid = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    mass = torch.exp(-grid.square() / 2)
    nearest = levels[torch.bucketize(grid, (levels[1:] + levels[:-1]) / 2)]
    measured = float(((grid - nearest).square() * mass).sum() / mass.sum())
    assert error == pytest.approx(measured, rel=1e-3)
    assert torch.equal(levels, levels.sort().values)
    torch.testing.assert_close(levels, -levels.flip(0), atol=1e-9, rtol=0)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(1e-6, 1e3), min_size=3, max_size=3), st.integers(0, 3 * MOST_BITS))
def test_no_other_bits_leave_less(values: list[float], budget: int) -> None:
    errors = rounding_errors().tolist()
    falling = sorted(values, reverse=True)

    def left(bits: tuple[int, ...]) -> float:
        return sum(float(v * errors[b]) for v, b in zip(falling, bits, strict=True))

    own = allocated(bit_order(torch.tensor(falling, dtype=torch.float64)), budget)
    assert int(own.sum()) == budget
    assert 0 <= int(own.min()) <= int(own.max()) <= MOST_BITS
    assert bool((own.diff() <= 0).all())
    every = (b for b in product(range(MOST_BITS + 1), repeat=3) if sum(b) == budget)
    assert left(tuple(own.tolist())) == pytest.approx(min(map(left, every)), rel=1e-9)


def test_a_coordinate_that_is_always_zero_has_a_bit_only_if_all_others_are_full() -> None:
    order = bit_order(torch.tensor([1.0, 0.0, 1e-9]))
    assert allocated(order, 2 * MOST_BITS).tolist() == [8, 0, 8]
    assert allocated(order, 2 * MOST_BITS + 1).tolist() == [8, 1, 8]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 8), max_size=20), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_codes_come_back_and_lie_as_written(widths: list[int], rows: int, seed: int) -> None:
    bits = np.array(widths, dtype=np.int64)
    codes = np.random.default_rng(seed).integers(0, 2**bits, (rows, len(bits))).astype(np.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (rows, packed_size(bits))
    assert packed.dtype == np.uint8
    for row, own in zip(packed, codes, strict=True):
        text = "".join(f"{code:0{width}b}" for code, width in zip(own, widths, strict=True))
        assert "".join(f"{byte:08b}" for byte in row) == text.ljust(8 * len(row), "0")
    np.testing.assert_array_equal(unpack(packed, bits), codes)


def residuals(seed: int, rows: int = 40, dim: int = 7) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.randn(dim, dim, generator=draw, dtype=torch.float64)
    return torch.randn(rows, dim, generator=draw, dtype=torch.float64) @ mixed + 0.3


def basis_of(residual: Tensor, power: float = 5.0) -> ResidualBasis:
    return ResidualBasis.of(residual.T @ residual / len(residual), power)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 7))
def test_the_error_is_that_of_the_best_approximation_of_the_residuals(seed: int, rank: int) -> None:
    residual = residuals(seed)
    singular = torch.linalg.svdvals(residual)
    best = float(singular[rank:].square().sum()) / len(residual)
    basis = basis_of(residual)
    assert float(basis.values[rank:].sum()) == pytest.approx(best, rel=1e-8, abs=1e-10)
    kept = residual @ basis.vectors[:, :rank] @ basis.vectors[:, :rank].T
    measured = float((residual - kept).square().sum(1).mean())
    assert measured == pytest.approx(best, rel=1e-8, abs=1e-10)


def test_what_is_no_covariance_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"\[D, D\]"):
        ResidualBasis.of(torch.zeros(2, 3), 1.0)
    for power in (0.0, math.inf):
        with pytest.raises(DataError, match="must be finite"):
            ResidualBasis.of(torch.eye(2), power)


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
    monkeypatch.setattr(coding, "ROWS", 5)
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
