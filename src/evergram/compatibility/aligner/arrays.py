"""Read vectors from a NumPy array or a torch tensor, and map them.

They are read in blocks, so that a memory-mapped array may be longer than memory. Mapped vectors
have the type, the dtype and (torch) the device of those read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evergram.errors import DataError, ShapeError

# Rows in a block.
BLOCK = 8192
# Larger numbers could not be squared and summed.
LARGEST = 1e100
# In and out alike.
Vectors = TypeVar("Vectors", npt.NDArray[Any], Tensor)


@dataclass(frozen=True)
class VectorReader:
    """N vectors of D floats that are read a block at a time.

    Args:
        name: of the vectors, for errors.
        vectors: [N, D].
    """

    name: str
    vectors: npt.NDArray[Any] | Tensor

    @property
    def rows(self) -> int:
        """N."""
        return len(self.vectors)

    @property
    def dim(self) -> int:
        """D."""
        return int(self.vectors.shape[1])

    def block(self, start: int, stop: int) -> Tensor:
        """Return rows `start` to `stop`, float32 or float64, whichever loses nothing, [b, D].

        Raises: DataError: one of them is not finite or too large to be summed.
        """
        part = self.vectors[start:stop]
        if isinstance(part, Tensor):
            block = part if part.dtype == torch.float64 else part.float()
        else:
            # Torch reads neither reversed views, nor other byte orders, nor wider floats.
            width = np.float64 if part.dtype.itemsize >= 8 else np.float32
            block = torch.from_numpy(np.array(part, dtype=width, order="C"))
        # Of a float32 the limit is infinite, and infinity is not below it.
        usable = (block.detach().abs() < LARGEST).all(1)
        if not bool(usable.all()):
            row = int(torch.nonzero(~usable)[0])
            size = float(block[row].detach().abs().max())
            problem = f"a number of size {size:.0e}, and {LARGEST:.0e} is the most"
            if not np.isfinite(size):
                problem = "NaN or infinity"
            raise DataError(
                f"{self.name}[{start + row}] holds {problem}; correct the row or leave it out."
            )
        return block


def open_vectors(vectors: Any, name: str) -> VectorReader:
    """Return a reader of vectors [N, D] of floats; nothing is copied before a block is read.

    Raises: ShapeError: they are of another type, hold no floats, or are not [N, D].
    """
    if isinstance(vectors, Tensor):
        are_floats = vectors.is_floating_point() and vectors.layout == torch.strided
    else:
        is_array = isinstance(vectors, np.ndarray) and not np.ma.isMaskedArray(vectors)
        are_floats = is_array and vectors.dtype.kind == "f"
    if not are_floats or vectors.ndim != 2 or not vectors.shape[1]:
        shown = f"a {type(vectors).__name__}"
        if isinstance(vectors, np.ndarray | Tensor):
            shown += f" of {vectors.dtype}, {list(vectors.shape)}"
        raise ShapeError(
            f"{name} is {shown}; it must be floats [N, D] in a NumPy array or a torch tensor."
        )
    return VectorReader(name, vectors)


def map_vectors(vectors: Vectors, weight: Tensor, offset: Tensor | None, name: str) -> Vectors:
    """Return W z + b of every z, as the same type of array with the same dtype.

    It is computed in float32, or in float64 for float64 vectors.

    Args:
        vectors: [N, D], or one of them, [D].
        weight, offset: W and b, float64 [D_old, D] and [D_old].
    Raises: ShapeError: they are not vectors, or have another dim. DataError: one is not finite, or
        its image is beyond the range of the dtype.
    """
    if isinstance(vectors, np.ndarray | Tensor) and vectors.ndim == 1:
        one: Vectors = map_vectors(vectors[None], weight, offset, name)[0]
        return one
    source = open_vectors(vectors, name)
    if source.dim != weight.shape[1]:
        raise ShapeError(
            f"{name} is {list(vectors.shape)}; this aligner was fitted to vectors of "
            f"{weight.shape[1]} dims."
        )
    if isinstance(vectors, Tensor):
        mapped = _mapped(source.block(0, source.rows), weight, offset).to(vectors.dtype)
        _check_finite(mapped.detach(), source, 0)
        return mapped
    out: npt.NDArray[Any] = np.empty((source.rows, len(weight)), vectors.dtype)
    for start in range(0, source.rows, BLOCK):
        part = out[start : start + BLOCK]
        with np.errstate(over="ignore"):  # `_check_finite` names the row
            part[...] = _mapped(source.block(start, start + len(part)), weight, offset).numpy()
        _check_finite(part, source, start)
    return out


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
