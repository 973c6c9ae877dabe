"""Read vectors from a NumPy array, a torch tensor or an Arrow array of lists, and map them.

They are read in blocks, so that a memory-mapped array may be longer than memory. Mapped vectors
have the type, the dtype and (torch) the device of those read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.errors import DataError, ShapeError

# Rows in a block.
BLOCK = 8192
# Larger numbers could not be squared and summed.
LARGEST = 1e100
WANTED = "floats [N, D] in a NumPy array, a torch tensor or an Arrow array of lists"
# In and out alike.
Vectors = TypeVar("Vectors")
Lists: tuple[Any, Any, Any] = (pa.FixedSizeListArray, pa.ListArray, pa.LargeListArray)


@dataclass(frozen=True)
class VectorReader:
    """N vectors of D floats that are read a block at a time.

    Args:
        name, shown: of the vectors, and the type that holds them, for errors.
        rows, dim: N and D; an Arrow array of no lists says no D, and has 0.
    """

    name: str
    rows: int
    dim: int
    shown: str
    _read: Callable[[int, int], Tensor]

    def block(self, start: int, stop: int) -> Tensor:
        """Return rows `start` to `stop`, float32 or float64, whichever loses nothing, [b, D].

        Raises: DataError: one of them is missing, not finite or too large to be summed.
        """
        block = self._read(start, stop)
        # Of a float32 the limit is infinite, and infinity is not below it.
        usable = (block.detach().abs() < LARGEST).all(1)
        if not bool(usable.all()):
            row = int(torch.nonzero(~usable)[0])
            size = block[row].detach().abs().max()
            problem = "holds NaN or infinity"
            if bool(torch.isfinite(size)):
                problem = f"holds a number of size {float(size):.0e}, and {LARGEST:.0e} is the most"
            raise self.refusal(start + row, problem)
        return block

    def refusal(self, row: int, problem: str) -> DataError:
        """Return the error to raise about a row, counted from 0 as in an index."""
        return DataError(f"{self.name}[{row}] {problem}; correct the row or leave it out.")


def open_vectors(vectors: Any, name: str) -> VectorReader:
    """Return a reader of vectors [N, D] of floats; nothing is copied before a block is read.

    Raises: ShapeError: they are of another type, hold no floats, or are not [N, D].
    """
    if isinstance(vectors, np.ndarray):
        shown = f"an array of {vectors.dtype}, {list(vectors.shape)}"
        if np.ma.isMaskedArray(vectors):
            raise _refusal(name, f"a masked array, {list(vectors.shape)}")
        if vectors.dtype.kind != "f":
            raise _refusal(name, shown)
        rows, dim = _dims_of(vectors.shape, name, shown)
        # Torch reads neither reversed views, nor other byte orders, nor wider floats.
        width = np.float64 if vectors.dtype.itemsize >= 8 else np.float32

        def of_array(start: int, stop: int) -> Tensor:
            return torch.from_numpy(np.array(vectors[start:stop], dtype=width, order="C"))

        return VectorReader(name, rows, dim, shown, of_array)
    if isinstance(vectors, Tensor):
        shown = f"a tensor of {vectors.dtype}, {list(vectors.shape)}"
        if not vectors.is_floating_point() or vectors.layout != torch.strided:
            raise _refusal(name, shown)
        rows, dim = _dims_of(tuple(vectors.shape), name, shown)
        wide = torch.float64 if vectors.dtype == torch.float64 else torch.float32
        return VectorReader(name, rows, dim, shown, lambda a, b: vectors[a:b].to(wide))
    if isinstance(vectors, (*Lists, pa.ChunkedArray)):
        return _open_arrow(vectors, name)
    module = type(vectors).__module__.split(".")[0]
    owner = "" if module == "builtins" else f"{module} "
    raise _refusal(name, f"a {owner}{type(vectors).__name__}")


def map_vectors(vectors: Vectors, weight: Tensor, offset: Tensor | None, name: str) -> Vectors:
    """Return W z + b of every z, as the same type of array with the same dtype.

    It is computed in float32, or in float64 for float64 vectors.

    Args:
        vectors: [N, D], or one of them, [D].
        weight, offset: W and b, float64 [D_old, D] and [D_old].
    Raises: ShapeError: they are not vectors, or have another dim. DataError: one is missing or not
        finite, or its image is beyond the range of the dtype.
    """
    of_any: Any = vectors
    if isinstance(of_any, np.ndarray | Tensor) and of_any.ndim == 1:
        several: Any = of_any[None]
        return map_vectors(several, weight, offset, name)[0]  # type: ignore[no-any-return]
    source = open_vectors(of_any, name)
    if source.dim != weight.shape[1] and source.dim:
        raise ShapeError(
            f"{name} is {source.shown}; this aligner was fitted to vectors of {weight.shape[1]} "
            "dims."
        )
    mapped: Any
    if isinstance(of_any, Tensor):
        mapped = _mapped(source.block(0, source.rows), weight, offset).to(of_any.dtype)
        _check_finite(mapped.detach(), source, 0)
        return mapped  # type: ignore[no-any-return]
    is_array = isinstance(of_any, np.ndarray)
    dtype = of_any.dtype if is_array else of_any.type.value_type.to_pandas_dtype()
    out: npt.NDArray[Any] = np.empty((source.rows, len(weight)), dtype)
    for start in range(0, source.rows, BLOCK):
        part = out[start : start + BLOCK]
        with np.errstate(over="ignore"):  # `_check_finite` names the row
            part[...] = _mapped(source.block(start, start + len(part)), weight, offset).numpy()
        _check_finite(part, source, start)
    if is_array:
        return out  # type: ignore[return-value]
    return _to_lists(out, of_any)  # type: ignore[no-any-return]


def _mapped(block: Tensor, weight: Tensor, offset: Tensor | None) -> Tensor:
    mapped = block @ weight.to(block).T
    return mapped if offset is None else mapped + offset.to(block)


def _check_finite(mapped: Tensor | npt.NDArray[Any], source: VectorReader, start: int) -> None:
    finite = torch.isfinite(mapped) if isinstance(mapped, Tensor) else np.isfinite(mapped)
    if not bool(finite.all()):
        row = start + int((~finite).any(1).nonzero()[0][0])
        raise DataError(
            f"{source.name}[{row}] is mapped beyond what {mapped.dtype} can hold; give wider "
            "floats."
        )


def _dims_of(shape: tuple[int, ...], name: str, shown: str) -> tuple[int, int]:
    if len(shape) != 2 or not shape[1]:
        raise _refusal(name, shown)
    return shape[0], shape[1]


def _refusal(name: str, shown: str) -> ShapeError:
    return ShapeError(f"{name} is {shown}; it must be {WANTED}.")


def _open_arrow(vectors: Any, name: str) -> VectorReader:
    kind = vectors.type
    fixed = pa.types.is_fixed_size_list(kind)
    shown = f"an Arrow array of {kind}"
    if not (fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise _refusal(name, shown)
    if not pa.types.is_floating(kind.value_type):
        raise _refusal(name, shown)
    rows = len(vectors)
    dim = kind.list_size if fixed else len(vectors[0]) if rows and vectors[0].is_valid else 1
    _dims_of((rows, dim), name, shown)
    if not (rows or fixed):
        dim = 0
    width = np.float64 if kind.value_type == pa.float64() else np.float32

    def of_lists(start: int, stop: int) -> Tensor:
        part = vectors.slice(start, stop - start)
        if isinstance(part, pa.ChunkedArray):
            part = pa.concat_arrays(part.chunks) if part.num_chunks else pa.array([], kind)
        if part.null_count:
            raise reader.refusal(start + pc.index(part.is_null(), True).as_py(), "is missing")
        if not fixed:
            wrong = pc.not_equal(pc.list_value_length(part), dim)
            if pc.any(wrong).as_py():
                row = pc.index(wrong, True).as_py()
                problem = f"has {len(part[row])} numbers, and {name}[0] has {dim}"
                raise reader.refusal(start + row, problem)
        values = part.flatten()
        if values.null_count:
            row = pc.index(values.is_null(), True).as_py() // dim
            raise reader.refusal(start + row, "holds a null")
        # Copied, as Arrow's memory must not be written to.
        flat = np.array(values.to_numpy(zero_copy_only=False), dtype=width)
        return torch.from_numpy(flat.reshape(-1, dim))

    reader = VectorReader(name, rows, dim, shown, of_lists)
    return reader


def _to_lists(rows: npt.NDArray[Any], like: Any) -> Any:
    """Return rows [N, D] as an Arrow array of lists, in chunks if `like` is in chunks."""
    lists = pa.list_(like.type.value_field, rows.shape[1])
    array = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=lists)
    if not pa.types.is_fixed_size_list(like.type):
        array = array.cast(like.type)
    if not isinstance(like, pa.ChunkedArray):
        return array
    ends = list(accumulate(len(chunk) for chunk in like.chunks))
    parts = [array.slice(end - len(c), len(c)) for c, end in zip(like.chunks, ends, strict=True)]
    return pa.chunked_array(parts, array.type)
