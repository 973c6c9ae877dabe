"""`Sidecar`: a few bytes stored with each new vector, from which readers restore the old vector."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evergram.compatibility.sidecar.coding import (
    LEVELS,
    MEMORY,
    MOST_BITS,
    TAPS,
    ResidualBasis,
    allocated,
    bit_order,
    encode,
    level_places,
    pack,
    packed_size,
    trellis_levels,
    unpack,
)
from evergram.errors import DataError, ShapeError

SAMPLE = 4096  # size of the sample that gives a first guess of the bytes needed for an error
Vectors = TypeVar("Vectors", Tensor, npt.NDArray[Any])


@dataclass(frozen=True)
class Sidecar:
    """The backward transform, and a code for its residual along r directions.

    The coordinates of a vector are quantised together, by a trellis code: the level of a coordinate
    depends on the codes of earlier coordinates.

    Only the new vectors and the codes are stored. New readers use the new vectors unchanged; old
    readers compute W z_k + b + U (levels of the codes · scales). Vectors are tensors or NumPy
    arrays, and results have the same type.

    Args:
        weight: W [D_{k-1}, D_k]; offset: b [D_{k-1}], or None.
        basis: U [D_{k-1}, r], orthonormal columns.
        scales: [r], √λ, the unit of each coordinate's levels.
        bits: int64 [r], bits of each coordinate's code, 1 to 8.
        levels: float64 [2040], the levels of codes of 1, 2, … 8 bits, see `coding.trellis_levels`.
        missing: the mean square error that remains, over the objects of `fit`.
        power: E‖z_{k-1}‖².
        memory: a key of `coding.TAPS`; 0 rounds each coordinate alone.
    Source: docs/old-readers.md, "A sidecar for old readers".

    >>> import torch
    >>> from evergram.compatibility.sidecar.sidecar import Sidecar
    >>> new = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))
    >>> old = torch.tanh(new @ torch.ones(6, 4) + new[:, :4])
    >>> sidecar = Sidecar.fit(torch.eye(4, 6), None, new, old, size=2)
    >>> codes = sidecar.encode(new, old)
    >>> codes.shape, codes.dtype, sidecar.bits.tolist()
    (torch.Size([500, 2]), torch.uint8, [4, 4, 4, 4])
    >>> error = (sidecar.read(new, codes) - old).square().sum(1).mean() / old.square().sum(1).mean()
    >>> abs(float(error.sqrt()) - sidecar.relative_error) < 0.001
    True
    """

    weight: Tensor
    offset: Tensor | None
    basis: Tensor
    scales: Tensor
    bits: Tensor
    levels: Tensor
    missing: float
    power: float
    memory: int = MEMORY

    @classmethod
    def fit(
        cls, weight: Tensor, offset: Tensor | None, new: Vectors, old: Vectors, size: int
    ) -> Sidecar:
        """Choose directions, scales and bits from objects with an old and a new vector.

        Args:
            weight, offset: the backward transform, e.g. from `Aligner.as_transform().affine()`.
            new: z_k [N, D_k]; old: z_{k-1} [N, D_{k-1}], of the same objects.
            size: bytes per vector, 0 to D_{k-1}; `fit_for_error` chooses it.
        Raises: ShapeError: a shape or the size is wrong. DataError: there are no objects, the old
            vectors are all zero, or a number is not finite.
        """
        residual = _residual(weight, offset, new, old)
        return _fitted(weight, offset, _basis_of(residual, old), residual, size)

    @classmethod
    def fit_for_error(
        cls, weight: Tensor, offset: Tensor | None, new: Vectors, old: Vectors, error: float
    ) -> Sidecar:
        """Fit with the fewest bytes for which `relative_error` is at most `error`.

        Raises: DataError: even the most bytes leave a larger error; or as in `fit`.
        """
        if not 0 <= error < math.inf:
            raise DataError(f"The error is {error:g}; it must be a number ≥ 0.")
        residual = _residual(weight, offset, new, old)
        basis = _basis_of(residual, old)
        sample, sizes = residual[:: -(-len(residual) // SAMPLE)], range(len(basis) + 1)

        @cache
        def fitted(size: int, *, whole: bool = True) -> Sidecar:
            return _fitted(weight, offset, basis, residual if whole else sample, size)

        guess = bisect_left(
            sizes, True, key=lambda n: fitted(n, whole=False).relative_error <= error
        )
        size = _first(guess, len(sizes), lambda n: fitted(n).relative_error <= error)
        if size in sizes:
            return fitted(size)
        best = fitted(sizes[-1])
        raise DataError(
            f"No sidecar reaches a relative error of {error:g}; the lowest is "
            f"{best.relative_error:.2g}, with {best.size} bytes per vector. Allow that error, or "
            "keep the old vectors."
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in a file."""
        tensors = {"weight": self.weight, "basis": self.basis, "scales": self.scales}
        if self.offset is not None:
            tensors["offset"] = self.offset
        tensors |= {"levels": self.levels, "bits": self.bits.to(torch.uint8)}
        return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}

    @classmethod
    def of_tensors(
        cls, tensors: Mapping[str, Tensor], codes: Tensor, record: Mapping[str, Any]
    ) -> Sidecar | None:
        """Return the sidecar described by a file's tensors and record; None if they are not valid
        or do not match the codes.

        Raises: KeyError: a tensor, or an entry of the record, is missing.
        """
        sidecar = cls(
            weight=tensors["weight"],
            offset=tensors.get("offset"),
            basis=tensors["basis"],
            scales=tensors["scales"],
            bits=tensors["bits"].long(),
            levels=tensors["levels"],
            missing=float(record["missing"]),
            power=float(record["power"]),
            memory=int(record["memory"]),
        )
        offset = sidecar.offset
        fits = (
            codes.dtype == torch.uint8
            and codes.dim() == sidecar.basis.dim() == sidecar.weight.dim() == 2
            and sidecar.scales.shape == sidecar.bits.shape == (sidecar.rank,)
            and bool(((sidecar.bits >= 1) & (sidecar.bits <= MOST_BITS)).all())
            and codes.shape[1] == sidecar.size
            and sidecar.levels.shape == (2 * LEVELS,)
            and sidecar.memory in TAPS
            and len(sidecar.basis) == len(sidecar.weight)
            and (offset is None or offset.shape == (len(sidecar.weight),))
            and all(bool(t.isfinite().all()) for t in sidecar.tensors().values())
        )
        return sidecar if fits else None

    @property
    def rank(self) -> int:
        """r."""
        return self.basis.shape[1]

    @property
    def size(self) -> int:
        """Bytes per vector."""
        return packed_size(self.bits.numpy())

    @property
    def relative_error(self) -> float:
        """√(E‖error‖² / E‖z_{k-1}‖²) over the objects of `fit`."""
        return math.sqrt(self.missing / self.power)

    def coordinates(self, new: Vectors, old: Vectors) -> Vectors:
        """Return the coordinates before rounding, float64 [N, r]. Raises: as in `encode`."""
        return _like(new, _residual(self.weight, self.offset, new, old) @ self.basis)

    def encode(self, new: Vectors, old: Vectors) -> Vectors:
        """Return the codes of objects, uint8 [N, size]; coordinates beyond the last level are
        clipped to it.

        Raises: ShapeError: a shape is wrong. DataError: a number is not finite.
        """
        codes = self._codes(_residual(self.weight, self.offset, new, old) @ self.basis)
        return _like(new, torch.from_numpy(pack(codes.numpy(), self.bits.numpy())))

    def read(self, new: Vectors, codes: Tensor | npt.NDArray[np.uint8]) -> Vectors:
        """Restore the old vectors of objects, [N, D_{k-1}], in the dtype of `new`. Half precision
        is computed in float32.

        Args:
            codes: [N, size] from `encode`.
        Raises: ShapeError: the codes have the wrong shape or dtype.
        """
        packed = _tensor(codes)
        if packed.shape != (len(new), self.size) or packed.dtype != torch.uint8:
            raise ShapeError(
                f"The codes are {list(packed.shape)} of {packed.dtype}; they must be uint8 "
                f"[{len(new)}, {self.size}], one row per vector."
            )
        codes = torch.from_numpy(unpack(packed.numpy(), self.bits.numpy()))
        vectors = _tensor(new)
        dtype = torch.promote_types(vectors.dtype, torch.float32)
        mapped = _mapped(self.weight, self.offset, vectors, dtype)
        restored = mapped + self._decoded(codes, dtype) @ self.basis.T.to(dtype)
        return _like(new, restored.to(vectors.dtype))

    def way_back(self, new: Tensor) -> Tensor:
        """Apply the backward transform alone, float64 [N, D_{k-1}]."""
        return _mapped(self.weight, self.offset, new)

    def read_coordinates(self, new: Tensor, coordinates: Tensor) -> Tensor:
        """Restore the old vectors from unrounded coordinates, float64 [N, D_{k-1}]."""
        return self.way_back(new) + coordinates.double() @ self.basis.T

    def _codes(self, coordinates: Tensor) -> Tensor:
        """Return the codes of coordinates, uint8 [N, r]."""
        standard = coordinates / torch.where(self.scales > 0, self.scales, 1.0)
        return encode(standard, self.scales.square(), self.bits, self.levels, self.memory)

    def _decoded(self, codes: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the coordinates that codes [N, r] stand for."""
        indices = level_places(codes, self.bits, self.memory).flatten()
        levels = self.levels.to(dtype).index_select(0, indices).view(codes.shape)
        return levels.mul_(self.scales.to(dtype))


def _fitted(
    weight: Tensor, offset: Tensor | None, basis: ResidualBasis, residual: Tensor, size: int
) -> Sidecar:
    if not 0 <= size <= len(basis):
        raise ShapeError(
            f"The size is {size} bytes; it must be 0 to {len(basis)}, one byte per coordinate of "
            "an old vector."
        )
    bits = allocated(bit_order(basis.values), 8 * size)
    # Bits decrease with the eigenvalues, so the coordinates with bits come first.
    rank = int((bits > 0).sum())
    shift = None if offset is None else offset.detach().double()
    coding = basis.vectors[:, :rank], basis.values[:rank].sqrt(), bits[:rank]
    fitted = Sidecar(weight.detach().double(), shift, *coding, trellis_levels(), 0.0, basis.power)
    coordinates = residual @ fitted.basis
    rounded = fitted._decoded(fitted._codes(coordinates))
    missing = basis.values[rank:].sum() + (coordinates - rounded).square().mean(0).sum()
    return replace(fitted, missing=float(missing))


def _first(guess: int, count: int, enough: Callable[[int], bool]) -> int:
    """Return the first number below `count` for which the monotone `enough` is true, or `count`.
    It gallops from the guess until the answer is bracketed, then bisects."""
    low, high, trial, step = 0, count, min(guess, count - 1), 1
    answers: set[bool] = set()
    while low < high:
        is_enough = enough(trial)
        answers.add(is_enough)
        low, high = (low, trial) if is_enough else (trial + 1, high)
        if len(answers) == 2:
            trial = (low + high) // 2
        else:
            trial = max(low, high - step) if is_enough else min(high - 1, low + step)
        step *= 2
    return low


def _basis_of(residual: Tensor, old: Tensor | npt.NDArray[Any]) -> ResidualBasis:
    if not len(residual):
        raise DataError("There are no vectors to fit a sidecar to; give some.")
    power = float(_tensor(old).double().square().sum(1).mean())
    return ResidualBasis.of(residual.T @ residual / len(residual), power)


def _tensor(array: Tensor | npt.NDArray[Any]) -> Tensor:
    """Return an array as a tensor, copied if torch cannot share its memory without a warning."""
    if isinstance(array, Tensor):
        return array
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def _like(vectors: Vectors, value: Tensor) -> Vectors:
    """Return a tensor as an array of the type of `vectors`."""
    return value.numpy() if isinstance(vectors, np.ndarray) else value


def _mapped(
    weight: Tensor, offset: Tensor | None, new: Tensor, dtype: torch.dtype = torch.float64
) -> Tensor:
    if new.dim() != 2 or new.shape[1] != weight.shape[1]:
        raise ShapeError(f"New vectors are {list(new.shape)}; they must be [N, {weight.shape[1]}].")
    mapped = new.detach().to(dtype) @ weight.detach().T.to(dtype)
    return mapped if offset is None else mapped + offset.detach().to(dtype)


def _residual(weight: Tensor, offset: Tensor | None, new: Vectors, old: Vectors) -> Tensor:
    """Return δ = z_{k-1} − W z_k − b, float64 [N, D_{k-1}]."""
    if tuple(old.shape) != (len(new), len(weight)):
        raise ShapeError(
            f"Old vectors are {list(old.shape)}; they must be [{len(new)}, {len(weight)}], of the "
            "same objects as the new ones."
        )
    residual = _tensor(old).detach().double() - _mapped(weight, offset, _tensor(new))
    if not bool(residual.isfinite().all()):
        raise DataError("A vector has a NaN or an infinity; correct it or leave it out.")
    return residual
