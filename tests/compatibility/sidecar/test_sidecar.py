"""A sidecar gives old vectors back: all of them in floats, and as near as it says in bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from evergram.compatibility import Aligner
from evergram.compatibility.sidecar.coding import encode, level_places, normal_levels
from evergram.compatibility.sidecar.sidecar import SOME, Sidecar, _first
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


def test_coordinates_are_rounded_along_the_best_path_by_what_they_are_worth() -> None:
    sidecar, new, old = fitted(3, 4)
    read = sidecar.read(new, sidecar.encode(new, old))
    back = new @ sidecar.weight.T
    assert sidecar.offset is not None
    standard = ((read - back - sidecar.offset) @ sidecar.basis) / sidecar.scales
    exact = sidecar.coordinates(new, old) / sidecar.scales
    settings = sidecar.bits, sidecar.levels, sidecar.memory
    codes = encode(exact, sidecar.scales.square(), *settings)
    levels = sidecar.levels[level_places(codes, sidecar.bits, sidecar.memory)]
    torch.testing.assert_close(standard, levels, rtol=0, atol=1e-12)


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
        (lambda: sidecar.read(new[:5], codes), ShapeError, "one row for each vector"),
        (lambda: sidecar.read(new, codes.float()), ShapeError, "one row for each vector"),
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
    old = torch.randn(2 * SOME, 12, generator=draw, dtype=torch.float64)
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


@pytest.mark.parametrize("count", [1, 2, 7, 50])
def test_the_first_number_is_found_from_any_guess_in_few_steps(count: int) -> None:
    for first in range(count + 1):
        for guess in range(count + 1):
            tried: list[int] = []

            def enough(number: int, first: int = first, tried: list[int] = tried) -> bool:
                tried.append(number)
                return number >= first

            assert _first(guess, count, enough) == first
            assert len(tried) <= 2 * abs(first - guess).bit_length() + 3
            assert len(set(tried)) == len(tried)


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
    with pytest.raises(DataError, match=rf"the least is {least:.2g}, with {OLD} bytes"):
        Sidecar.fit_for_error(*affine, new, old, 0.9 * least)
    with pytest.raises(DataError, match="nan"):
        Sidecar.fit_for_error(*affine, new, old, float("nan"))


def test_arrays_of_numpy_are_taken_and_returned() -> None:
    sidecar, new, old = fitted(1, 3)
    affine = Aligner("affine").fit(new.numpy(), old.numpy()).as_transform().affine()
    assert affine is not None
    same = Sidecar.fit(*affine, new.numpy(), old.numpy(), 3)
    codes = same.encode(new.numpy(), old.numpy())
    assert isinstance(codes, np.ndarray)
    read = same.read(new.numpy(), codes)
    assert isinstance(read, np.ndarray)
    expected = sidecar.read(new, sidecar.encode(new, old))
    np.testing.assert_allclose(read, expected.numpy(), atol=1e-9)
    with pytest.raises(ShapeError, match="Old vectors are"):
        Sidecar.fit(*affine, new.numpy(), old.numpy()[:5], 3)


@pytest.mark.parametrize(
    "change", [lambda a: a[::-1], lambda a: a.astype(">f8"), np.asfortranarray]
)
def test_views_and_other_byte_orders_of_numpy_are_taken(change: Any) -> None:
    _, new, old = (part if isinstance(part, Sidecar) else part.numpy() for part in fitted(1, 3))
    affine = Aligner("affine").fit(new, old).as_transform().affine()
    assert affine is not None
    views = change(new), change(old)
    plain = [np.ascontiguousarray(view, dtype=view.dtype.newbyteorder("=")) for view in views]
    weight, offset = affine
    fits = [Sidecar.fit(weight, offset, both[0], both[1], 3) for both in (views, plain)]
    codes = [fit.encode(*both) for fit, both in zip(fits, (views, plain), strict=True)]
    np.testing.assert_array_equal(*codes)
    np.testing.assert_array_equal(
        fits[0].read(views[0], codes[0]), fits[1].read(plain[0], codes[1])
    )
