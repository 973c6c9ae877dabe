"""A sidecar gives old vectors back: all of them in floats, and as near as predicted in int8."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from evergram.compatibility import Aligner
from evergram.compatibility.sidecar.sidecar import Sidecar
from evergram.errors import DataError, ShapeError

OLD, NEW, ROWS = 8, 11, 3000


def pairs(seed: int) -> tuple[Tensor, Tensor]:
    """Return new vectors, and old ones that are partly a map of them and partly their own."""
    draw = torch.Generator().manual_seed(seed)
    new = torch.randn(ROWS, NEW, generator=draw, dtype=torch.float64)
    own = torch.randn(ROWS, OLD, generator=draw, dtype=torch.float64) * torch.linspace(2, 0.1, OLD)
    return new, new @ torch.randn(NEW, OLD, generator=draw, dtype=torch.float64) / 3 + own


def fitted(seed: int, rank: int, kind: str = "affine") -> tuple[Sidecar, Tensor, Tensor]:
    new, old = pairs(seed)
    affine = Aligner(kind).fit(new, old).as_transform().affine()
    assert affine is not None
    return Sidecar.fit(*affine, new, old, rank), new, old


def measured(sidecar: Sidecar, new: Tensor, old: Tensor, read: Tensor) -> float:
    return float(((read - old).square().sum(1).mean() / old.square().sum(1).mean()).sqrt())


@pytest.mark.parametrize("kind", ["linear", "affine", "orthogonal"])
@pytest.mark.parametrize("seed", range(3))
def test_the_error_falls_with_the_rank_and_is_the_predicted_one(seed: int, kind: str) -> None:
    errors = []
    for rank in range(OLD + 1):
        sidecar, new, old = fitted(seed, rank, kind)
        errors.append(measured(sidecar, new, old, sidecar.read(new, sidecar.encode(new, old))))
        # Rounding errors are uniform up to a few per cent of themselves.
        assert sidecar.relative_error == pytest.approx(errors[-1], rel=0.03)
        exact = measured(
            sidecar, new, old, sidecar.read_coordinates(new, sidecar.coordinates(new, old))
        )
        expected = (sidecar.left / sidecar.power) ** 0.5
        assert exact == pytest.approx(expected, rel=1e-9, abs=1e-7)
    assert errors == sorted(errors, reverse=True)


def test_the_full_rank_in_floats_is_the_old_vectors() -> None:
    sidecar, new, old = fitted(0, OLD)
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


def test_a_coordinate_beyond_all_that_was_seen_is_cut_off() -> None:
    sidecar, new, old = fitted(1, 2)
    far = sidecar.encode(new[:1], old[:1] + 1e6 * sidecar.basis[:, 0])
    assert int(far[0, 0]) == 127


def test_a_map_without_error_needs_no_codes() -> None:
    new = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sidecar = Sidecar.fit(torch.eye(4), None, new, new, 2)
    assert not sidecar.encode(new, new).any()
    assert sidecar.relative_error == pytest.approx(0, abs=1e-9)
    torch.testing.assert_close(sidecar.read(new, sidecar.encode(new, new)), new)


def test_wrong_input_is_refused() -> None:
    sidecar, new, old = fitted(0, 2)
    codes = sidecar.encode(new, old)
    with pytest.raises(ShapeError, match="one row for each vector"):
        sidecar.read(new[:5], codes)
    with pytest.raises(ShapeError, match="one row for each vector"):
        sidecar.read(new, codes.float())
    with pytest.raises(ShapeError, match="New vectors are"):
        sidecar.read(new[:, :3], codes)
    with pytest.raises(ShapeError, match="Old vectors are"):
        sidecar.encode(new, old[:5])
    with pytest.raises(DataError, match="NaN"):
        sidecar.encode(new, old * torch.nan)
    with pytest.raises(DataError, match="no vectors"):
        Sidecar.fit(torch.eye(2), None, torch.zeros(0, 2), torch.zeros(0, 2), 1)
    with pytest.raises(ShapeError, match="0 to 8"):
        fitted(0, OLD + 1)


@pytest.mark.parametrize("error", [0.5, 0.3, 0.1, 0.02])
def test_the_rank_for_an_error_is_the_least_that_leaves_no_more(error: float) -> None:
    _, new, old = fitted(2, 0)
    affine = Aligner("affine").fit(new, old).as_transform().affine()
    assert affine is not None
    sidecar = Sidecar.fit_for_error(*affine, new, old, error)
    assert sidecar.relative_error <= error
    assert sidecar.rank > 0
    assert Sidecar.fit(*affine, new, old, sidecar.rank - 1).relative_error > error


def test_an_error_below_that_of_rounding_is_refused() -> None:
    _, new, old = fitted(2, 0)
    affine = Aligner("affine").fit(new, old).as_transform().affine()
    assert affine is not None
    least = min(Sidecar.fit(*affine, new, old, rank).relative_error for rank in range(OLD + 1))
    with pytest.raises(DataError, match=rf"the least is {least:.2g}, with {OLD} bytes"):
        Sidecar.fit_for_error(*affine, new, old, 0.9 * least)
    with pytest.raises(DataError, match="must be a number of 0 or more"):
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
