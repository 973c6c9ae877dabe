"""A sidecar gives old vectors back: its errors, its codes by exhaustive search, and its bytes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from evergram.compatibility import Aligner
from evergram.compatibility.sidecar import SAMPLE, Sidecar
from evergram.errors import DataError, ShapeError

OLD, NEW, ROWS = 5, 7, 1200


def pairs(seed: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Return new vectors, and old ones that are partly a map of them and partly their own."""
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(NEW, OLD, generator=draw, dtype=torch.float64) / 3
    new = torch.randn(rows, NEW, generator=draw, dtype=torch.float64)
    own = torch.randn(rows, OLD, generator=draw, dtype=torch.float64) * torch.linspace(2, 0.1, OLD)
    return new, new @ weight + own


def affine(new: Tensor, old: Tensor, kind: str = "affine") -> tuple[Tensor, Tensor | None]:
    found = Aligner(kind).fit(new, old).as_transform().affine()
    assert found is not None
    return found


def fitted(seed: int, size: int, kind: str = "affine") -> tuple[Sidecar, Tensor, Tensor]:
    new, old = pairs(seed)
    return Sidecar.fit(*affine(new, old, kind), new, old, size), new, old


def measured(old: Tensor, read: Tensor) -> float:
    return float(((read - old).square().sum(1).mean() / old.square().sum(1).mean()).sqrt())


@pytest.mark.parametrize(("seed", "kind"), [(0, "linear"), (1, "affine"), (2, "orthogonal")])
def test_the_error_falls_with_the_bytes_and_is_the_one_that_it_says(seed: int, kind: str) -> None:
    errors = []
    for size in range(4):
        sidecar, new, old = fitted(seed, size, kind)
        codes = sidecar.encode(new, old)
        assert codes.shape == (ROWS, size)
        assert sidecar.size == size
        errors.append(measured(old, sidecar.read(new, codes)))
        assert sidecar.relative_error == pytest.approx(errors[-1], rel=1e-5)
    assert errors == sorted(errors, reverse=True)
    # The residual is at most of rank 5: by Shannon's bound three bytes leave 2^-4.8 of it.
    assert errors[-1] < 0.1 * errors[0]


def test_a_codes_vector_is_the_sum_of_its_codebooks() -> None:
    sidecar, new, old = fitted(0, 3)
    codes = sidecar.encode(new, old)
    weight, offset = sidecar.weight, sidecar.offset
    assert offset is not None
    for row in range(20):
        expected = weight @ new[row] + offset
        for stage, code in enumerate(codes[row].tolist()):
            expected = expected + sidecar.codebooks[stage, code].double()
        torch.testing.assert_close(sidecar.read(new, codes)[row], expected, rtol=0, atol=1e-5)


def test_codes_are_nearly_the_nearest_of_all() -> None:
    """With two bytes all 65,536 codes can be tried."""
    sidecar, new, old = fitted(3, 2)
    first, second = sidecar.codebooks.double()
    every = (first[:, None] + second[None]).reshape(-1, OLD)
    assert sidecar.offset is not None
    residual = old[:100] - new[:100] @ sidecar.weight.T - sidecar.offset
    least = torch.cdist(residual, every).min(1).values.square()
    left = (sidecar.read(new[:100], sidecar.encode(new[:100], old[:100])) - old[:100]).square()
    assert bool((left.sum(1) > least - 1e-6).all())
    assert float(left.sum()) < 1.15 * float(least.sum())


def test_one_byte_is_the_nearest_of_256_that_no_reassignment_improves() -> None:
    """A codebook of one stage is k-means: codes are the nearest, and each vector is about the mean
    of those that have its code."""
    sidecar, new, old = fitted(4, 1)
    (book,), codes = sidecar.codebooks.double(), sidecar.encode(new, old)[:, 0].long()
    assert sidecar.offset is not None
    residual = old - new @ sidecar.weight.T - sidecar.offset
    assert torch.equal(codes, torch.cdist(residual, book).argmin(1))
    means = torch.zeros_like(book).index_add_(0, codes, residual)
    means /= torch.bincount(codes, minlength=len(book)).clamp(min=1)[:, None]
    by_means = (residual - means[codes]).square().sum()
    assert float(by_means) > 0.97 * float((residual - book[codes]).square().sum())


def test_what_it_leaves_of_objects_that_were_not_fitted_to() -> None:
    new, old = pairs(4, 12_000)
    transform = affine(new, old)
    sidecar = Sidecar.fit(*transform, new[:8000], old[:8000], 2)
    new, old = new[8000:], old[8000:]
    error = measured(old, sidecar.read(new, sidecar.encode(new, old)))
    assert sidecar.relative_error < error < 1.2 * sidecar.relative_error


def test_long_residuals_are_kept_better_than_short_ones() -> None:
    """Of heavy-tailed residuals the long ones, which rankings depend on, have their own codes."""
    draw = torch.Generator().manual_seed(5)
    lengths = torch.exp(2 * torch.randn(ROWS, 1, generator=draw, dtype=torch.float64))
    old = lengths * torch.randn(ROWS, OLD, generator=draw, dtype=torch.float64)
    new = torch.zeros(ROWS, 1, dtype=torch.float64)
    sidecar = Sidecar.fit(torch.zeros(OLD, 1), None, new, old, 3)
    left = (sidecar.read(new, sidecar.encode(new, old)) - old).norm(dim=1) / old.norm(dim=1)
    order = old.norm(dim=1).argsort(descending=True)
    assert float(left[order[:20]].max()) < 0.2 < float(left[order[-300:]].mean())


def test_a_map_without_error_needs_no_bytes() -> None:
    new = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for size in (0, 2):
        sidecar = Sidecar.fit(torch.eye(4), None, new, new, size)
        assert sidecar.relative_error == pytest.approx(0, abs=1e-9)
        torch.testing.assert_close(sidecar.read(new, sidecar.encode(new, new)), new)
    assert Sidecar.fit_for_error(torch.eye(4), None, new, new, 0.0).size == 0


@pytest.mark.parametrize("rows", [1, 3, 255])
def test_fewer_objects_than_a_codebook_has_vectors_are_read_well(rows: int) -> None:
    new, old = pairs(6, rows)
    sidecar = Sidecar.fit(torch.zeros(OLD, NEW), None, new, old, 2)
    assert measured(old, sidecar.read(new, sidecar.encode(new, old))) < 0.05


def test_a_sample_is_fitted_to_and_all_objects_are_judged() -> None:
    new, old = pairs(7, 3 * SAMPLE)
    old[1::3] += 20  # these are in no sample
    sidecar = Sidecar.fit(torch.zeros(OLD, NEW), None, new, old, 1)
    error = measured(old, sidecar.read(new, sidecar.encode(new, old)))
    assert sidecar.relative_error == pytest.approx(error, rel=1e-5)
    assert float(sidecar.codebooks.norm(dim=2).max()) < 20


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
        (lambda: Sidecar.fit(torch.eye(4), None, new[:, :4], new[:, :4] * 0, 1), DataError, "is 0"),
        (lambda: fitted(0, -1), ShapeError, "0 to 5"),
        (lambda: fitted(0, OLD + 1), ShapeError, "0 to 5"),
    ]
    for call, error, named in refused:
        with pytest.raises(error, match=named):
            call()


def test_without_faiss_codes_are_read_but_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar, new, old = fitted(0, 2)
    codes = sidecar.encode(new, old)
    read = sidecar.read(new, codes)
    monkeypatch.setitem(sys.modules, "faiss", None)
    torch.testing.assert_close(sidecar.read(new, codes), read)
    with pytest.raises(DataError, match=r"evergram\[faiss\]"):
        sidecar.encode(new, old)


def test_the_bytes_for_an_error_are_the_fewest_that_leave_no_more() -> None:
    _, new, old = fitted(2, 0)
    transform = affine(new, old)
    for error in (0.5, 0.1, 0.02):
        sidecar = Sidecar.fit_for_error(*transform, new, old, error)
        assert sidecar.relative_error <= error
        assert Sidecar.fit(*transform, new, old, sidecar.size - 1).relative_error > error
    least = Sidecar.fit(*transform, new, old, OLD).relative_error
    with pytest.raises(DataError, match=rf"the lowest is {least:.2g}, with {OLD} bytes"):
        Sidecar.fit_for_error(*transform, new, old, 0.5 * least)
    for wrong in (float("nan"), -0.1, math.inf):
        with pytest.raises(DataError, match="must be a number"):
            Sidecar.fit_for_error(*transform, new, old, wrong)


@pytest.mark.parametrize(
    "change", [lambda a: a, lambda a: a[::-1], lambda a: a.astype(">f8"), np.asfortranarray]
)
def test_arrays_of_numpy_are_taken_and_returned(change: Any) -> None:
    new, old = pairs(1, 300)
    weight, offset = affine(new, old)
    arrays = change(new.numpy()), change(old.numpy())
    tensors = [torch.from_numpy(np.array(a, dtype=np.float64, order="C")) for a in arrays]
    mine = Sidecar.fit(weight, offset, arrays[0], arrays[1], 2)
    expected = Sidecar.fit(weight, offset, tensors[0], tensors[1], 2)
    codes = mine.encode(*arrays)
    assert isinstance(codes, np.ndarray)
    np.testing.assert_array_equal(codes, expected.encode(*tensors).numpy())
    read = mine.read(arrays[0], codes)
    assert isinstance(read, np.ndarray)
    np.testing.assert_array_equal(read, expected.read(tensors[0], torch.from_numpy(codes)).numpy())
    with pytest.raises(ShapeError, match="Old vectors are"):
        Sidecar.fit(weight, offset, arrays[0], arrays[1][:5], 2)


@pytest.mark.parametrize("blocks", [1, 7])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rows_are_encoded_and_read_alike_in_any_block(dtype: torch.dtype, blocks: int) -> None:
    sidecar, new, old = fitted(8, 3)
    new, old = new[:70].to(dtype), old[:70].to(dtype)
    whole = sidecar.encode(new, old)
    parts = zip(new.chunk(blocks), old.chunk(blocks), strict=True)
    codes = torch.cat([sidecar.encode(*part) for part in parts])
    assert torch.equal(codes, whole)
    read = sidecar.read(new, codes)
    assert read.dtype == dtype
    assert measured(old.float(), read.float()) < 0.1
