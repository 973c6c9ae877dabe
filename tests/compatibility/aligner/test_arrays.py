"""Vectors of each type of array are mapped to the same type, and unreadable ones are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.planted_maps import Floats, planted_map

from evergram.compatibility import Aligner
from evergram.compatibility.aligner import arrays
from evergram.errors import DataError, ShapeError

NEW, OLD, _ = planted_map(300, 3, 4)
ALIGNER = Aligner("affine").fit(NEW, OLD)
EXPECTED: Floats = ALIGNER.transform(NEW)


@pytest.mark.parametrize(
    ("dtype", "allowed"), [("f2", 0.05), ("f4", 1e-4), ("f8", 0), (">f4", 1e-4), ("g", 0)]
)
def test_numpy_of_any_width(dtype: str, allowed: float) -> None:
    mapped = ALIGNER.transform(NEW.astype(dtype))
    assert isinstance(mapped, np.ndarray)
    assert mapped.dtype == np.dtype(dtype)
    np.testing.assert_allclose(mapped.astype(float), EXPECTED, rtol=0, atol=allowed)


@pytest.mark.parametrize("size", [1, 7, 300])
def test_blocks_of_any_size(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK", size)
    np.testing.assert_allclose(ALIGNER.transform(NEW), EXPECTED, rtol=1e-12)


def test_numpy_views_and_memory_maps_are_read_and_not_written(tmp_path: Any) -> None:
    np.save(tmp_path / "new.npy", NEW)
    mapped = np.load(tmp_path / "new.npy", mmap_mode="r")
    assert np.array_equal(ALIGNER.transform(mapped), EXPECTED)
    assert np.array_equal(ALIGNER.transform(NEW[::-1]), EXPECTED[::-1])
    assert np.array_equal(ALIGNER.transform(np.asfortranarray(NEW)), EXPECTED)
    one = ALIGNER.transform(NEW[5])
    assert one.shape == (3,)
    np.testing.assert_allclose(one, EXPECTED[5])
    assert ALIGNER.transform(NEW[:0]).shape == (0, 3)


@pytest.mark.parametrize(
    ("dtype", "allowed"),
    [(torch.float16, 0.05), (torch.bfloat16, 0.3), (torch.float32, 1e-4), (torch.float64, 0)],
)
def test_torch_of_any_width(dtype: torch.dtype, allowed: float) -> None:
    mapped = ALIGNER.transform(torch.from_numpy(NEW).to(dtype))
    assert isinstance(mapped, torch.Tensor)
    assert mapped.dtype == dtype
    torch.testing.assert_close(mapped.double(), torch.from_numpy(EXPECTED), rtol=0, atol=allowed)


def test_gradients_flow_through_torch_and_fitting_needs_none() -> None:
    new = torch.from_numpy(NEW[:6]).requires_grad_()
    assert torch.autograd.gradcheck(ALIGNER.transform, (new,))
    fitted = Aligner("affine").fit(torch.from_numpy(NEW).requires_grad_(), torch.from_numpy(OLD))
    assert np.array_equal(fitted.transform(NEW), EXPECTED)


def lists(kind: pa.DataType, rows: Floats = NEW) -> pa.Array:
    return pa.array(list(rows.astype(kind.value_type.to_pandas_dtype())), kind)


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        (pa.list_(pa.float16(), 4), 0.05),
        (pa.list_(pa.field("element", pa.float32()), 4), 1e-4),
        (pa.list_(pa.float64(), 4), 0),
        (pa.list_(pa.float64()), 0),
        (pa.large_list(pa.float32()), 1e-4),
    ],
    ids=str,
)
def test_arrow_of_any_width_and_kind_of_list(kind: pa.DataType, allowed: float) -> None:
    column = lists(kind)
    mapped = ALIGNER.transform(column)
    fixed = pa.types.is_fixed_size_list(kind)
    assert mapped.type == (pa.list_(kind.value_field, 3) if fixed else kind)
    np.testing.assert_allclose(np.array(mapped.to_pylist(), float), EXPECTED, rtol=0, atol=allowed)
    part = ALIGNER.transform(column.slice(10, 5))
    assert part.type == mapped.type
    np.testing.assert_allclose(np.array(part.to_pylist(), float), EXPECTED[10:15], atol=allowed)
    # A column of a table comes in chunks, which it keeps.
    chunks = pa.chunked_array([column.slice(0, 100), column.slice(100)])
    of_chunks = ALIGNER.transform(chunks)
    assert [len(c) for c in of_chunks.chunks] == [100, 200]
    assert of_chunks.combine_chunks().equals(mapped)
    assert ALIGNER.transform(pa.chunked_array([], pa.list_(pa.float32(), 4))).num_chunks == 0


def test_kinds_may_be_mixed_and_fit_the_same() -> None:
    column = lists(pa.list_(pa.float64(), 4))
    chunks = pa.chunked_array([column.slice(0, 7), column.slice(7)])
    for new in (torch.from_numpy(NEW), column, chunks, lists(pa.list_(pa.float64()))):
        fitted = Aligner("affine").fit(new, OLD)
        assert np.array_equal(fitted.transform(NEW), EXPECTED)
        assert fitted.report() == ALIGNER.report()


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0] * 4], r"new is a list; it must be floats \[N, D\] in a NumPy array"),
        (NEW.astype(int), r"new is an array of int64, \[300, 4\]"),
        (NEW.astype(complex), "new is an array of complex128"),
        (np.ma.masked_array(NEW, NEW > 1), "new is a masked array"),
        (NEW[None], r"new is an array of float64, \[1, 300, 4\]"),
        (np.zeros((3, 0)), r"new is an array of float64, \[3, 0\]"),
        (np.float64(3), "new is a numpy float64"),
        (OLD, r"new is an array of float64, \[300, 3\]; this aligner was fitted to vectors of 4"),
        (torch.ones(3, 4, dtype=torch.int64), r"new is a tensor of torch.int64, \[3, 4\]"),
        (torch.eye(4).to_sparse(), "new is a tensor"),
        (pa.array([1.0, 2.0]), "new is a pyarrow DoubleArray"),
        (pa.array([[1, 2, 3, 4]]), "new is an Arrow array of list<item: int64>"),
        (pa.table({"vector": [[1.0]]}), "new is a pyarrow Table"),
    ],
    ids=str,
)
def test_other_types_and_shapes_are_refused(vectors: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        ALIGNER.transform(vectors)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (
            np.full((2, 4), np.inf),
            r"new\[0\] holds NaN or infinity; correct the row or leave it out",
        ),
        (torch.tensor([[1.0] * 4, [torch.nan] * 4]), r"new\[1\] holds NaN"),
        (np.full((2, 4), 2e4, "f2") * [[1], [3]], None),
        (np.array([[1.0] * 4, [6e4] * 4], "f2"), r"new\[1\] is mapped beyond what float16"),
        (torch.full((2, 4), 6e4, dtype=torch.float16), r"new\[0\] is mapped beyond"),
        (pa.array([[1.0] * 4, None]), r"new\[1\] is missing"),
        (pa.array([[1.0] * 4, [1.0] * 3]), r"new\[1\] has 3 numbers, and new\[0\] has 4"),
        (pa.array([[1.0] * 4, [1.0, None] * 2]), r"new\[1\] holds a null"),
        (pa.array([[1.0] * 4, None], pa.list_(pa.float32(), 4)), r"new\[1\] is missing"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(vectors: Any, message: str | None) -> None:
    if message is None:
        assert ALIGNER.transform(vectors).shape == (2, 3)
        return
    with pytest.raises(DataError, match=message):
        ALIGNER.transform(vectors)


def test_the_row_is_counted_over_blocks_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK", 5)
    spoilt = NEW.copy()
    spoilt[123, 1] = np.inf
    column = lists(pa.list_(pa.float64(), 4), spoilt)
    for vectors in (spoilt, column, pa.chunked_array([column.slice(0, 99), column.slice(99)])):
        with pytest.raises(DataError, match=r"new\[123\]"):
            ALIGNER.transform(vectors)
