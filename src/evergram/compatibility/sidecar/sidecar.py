"""`Sidecar`: a few bytes beside each new vector, with which an old reader gets the old one back."""

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

# Objects by which the bytes for an error are guessed, before all of them are looked at.
SOME = 4096
Vectors = TypeVar("Vectors", Tensor, npt.NDArray[Any])


@dataclass(frozen=True)
class Sidecar:
    """The backward transform, and what it leaves along r directions, each by its bits.

    Which of the levels that its bits can name a coordinate is read as depends on the codes before
    it: a vector's coordinates are rounded together (`trellis`).

    Only the new vectors and the codes are stored. A new reader takes the new vectors as they are;
    an old one reads W z_k + b + U (levels of the codes · scales). Vectors are tensors or NumPy
    arrays, and what is returned is of the same kind.

    Args:
        weight: W [D_{k-1}, D_k]; offset: b [D_{k-1}], or None.
        basis: U [D_{k-1}, r], orthonormal columns.
        scales: [r], √λ of each coordinate; what its levels are worth.
        bits: int64 [r], of each coordinate's code, 1 to 8.
        levels: float64 [2040], what codes of 1, 2, … 8 bits may stand for, as for `trellis_levels`.
        missing: the mean square of what is not read back, over the objects of `fit`.
        power: E‖z_{k-1}‖².
        memory: as for `trellis.TAPS`; 0 rounds each coordinate alone.
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
        """Choose directions, scales and bits by objects whose old and new vectors are there.

        Args:
            weight, offset: the backward transform, as `Aligner.as_transform().affine()` has it.
            new: z_k [N, D_k]; old: z_{k-1} [N, D_{k-1}], of the same objects.
            size: bytes beside each vector, 0 to D_{k-1}; `fit_for_error` chooses it.
        Raises: ShapeError: shapes or size do not fit. DataError: there are no objects, or the old
            vectors are all zero, or a number is not finite.
        """
        residual = _residual(weight, offset, new, old)
        return _fitted(weight, offset, _basis_of(residual, old), residual, size)

    @classmethod
    def fit_for_error(
        cls, weight: Tensor, offset: Tensor | None, new: Vectors, old: Vectors, error: float
    ) -> Sidecar:
        """As `fit`, with the fewest bytes for which `relative_error` is at most `error`.

        Raises: DataError: no number of bytes leaves so little, as coordinates are rounded; or as of
            `fit`.
        """
        if not 0 <= error < math.inf:
            raise DataError(f"The error is {error:g}; it must be a number of 0 or more.")
        residual = _residual(weight, offset, new, old)
        basis = _basis_of(residual, old)
        some, sizes = residual[:: -(-len(residual) // SOME)], range(len(basis) + 1)

        @cache
        def fitted(size: int, *, whole: bool = True) -> Sidecar:
            return _fitted(weight, offset, basis, residual if whole else some, size)

        guess = bisect_left(
            sizes, True, key=lambda n: fitted(n, whole=False).relative_error <= error
        )
        size = _first(guess, len(sizes), lambda n: fitted(n).relative_error <= error)
        if size in sizes:
            return fitted(size)
        best = fitted(sizes[-1])
        raise DataError(
            f"No sidecar leaves a relative error of {error:g}; the least is "
            f"{best.relative_error:.2g}, with {best.size} bytes a vector. Allow so much, or keep "
            "the old vectors."
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return its tensors by their names in a file."""
        tensors = {"weight": self.weight, "basis": self.basis, "scales": self.scales}
        if self.offset is not None:
            tensors["offset"] = self.offset
        tensors |= {"levels": self.levels, "bits": self.bits.to(torch.uint8)}
        return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}

    @classmethod
    def of_tensors(
        cls, tensors: Mapping[str, Tensor], codes: Tensor, record: Mapping[str, Any]
    ) -> Sidecar | None:
        """Return the sidecar of a file's tensors and record; None if these and the codes do not fit
        together.

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
        """The bytes beside each vector."""
        return packed_size(self.bits.numpy())

    @property
    def relative_error(self) -> float:
        """√(E‖error‖² / E‖z_{k-1}‖²) of reading, as it was for the objects of `fit`."""
        return math.sqrt(self.missing / self.power)

    def coordinates(self, new: Vectors, old: Vectors) -> Vectors:
        """Return the coordinates before rounding, float64 [N, r]. Raises: as for `encode`."""
        return _like(new, _residual(self.weight, self.offset, new, old) @ self.basis)

    def encode(self, new: Vectors, old: Vectors) -> Vectors:
        """Return the codes of objects, uint8 [N, size]; a coordinate beyond the last level is
        stored as that.

        Raises: ShapeError: shapes do not fit. DataError: a number is not finite.
        """
        codes = self._codes(_residual(self.weight, self.offset, new, old) @ self.basis)
        return _like(new, torch.from_numpy(pack(codes.numpy(), self.bits.numpy())))

    def read(self, new: Vectors, codes: Tensor | npt.NDArray[np.uint8]) -> Vectors:
        """Return the old vectors of objects, [N, D_{k-1}], of the type of `new`, in which they are
        computed, but for half precision, which is computed in float32.

        Args:
            codes: [N, size] of `encode`.
        Raises: ShapeError: they are of other objects, or of another sidecar.
        """
        packed = _tensor(codes)
        if packed.shape != (len(new), self.size) or packed.dtype != torch.uint8:
            raise ShapeError(
                f"The codes are {list(packed.shape)} of {packed.dtype}; uint8 "
                f"[{len(new)}, {self.size}] is needed, one row for each vector."
            )
        steps = torch.from_numpy(unpack(packed.numpy(), self.bits.numpy()))
        vectors = _tensor(new)
        wide = torch.promote_types(vectors.dtype, torch.float32)
        back = _mapped(self.weight, self.offset, vectors, wide)
        read = back + self._worth(steps, wide) @ self.basis.T.to(wide)
        return _like(new, read.to(vectors.dtype))

    def way_back(self, new: Tensor) -> Tensor:
        """Return what the backward transform alone reads, float64 [N, D_{k-1}]."""
        return _mapped(self.weight, self.offset, new)

    def read_coordinates(self, new: Tensor, coordinates: Tensor) -> Tensor:
        """Return the old vectors by coordinates that were not rounded, float64 [N, D_{k-1}]."""
        return self.way_back(new) + coordinates.double() @ self.basis.T

    def _codes(self, coordinates: Tensor) -> Tensor:
        """Return the codes of coordinates, uint8 [N, r]."""
        standard = coordinates / torch.where(self.scales > 0, self.scales, 1.0)
        return encode(standard, self.scales.square(), self.bits, self.levels, self.memory)

    def _worth(self, codes: Tensor, wide: torch.dtype = torch.float64) -> Tensor:
        """Return what codes [N, r] stand for."""
        places = level_places(codes, self.bits, self.memory).flatten()
        levels = self.levels.to(wide).index_select(0, places).view(codes.shape)
        return levels.mul_(self.scales.to(wide))


def _fitted(
    weight: Tensor, offset: Tensor | None, basis: ResidualBasis, residual: Tensor, size: int
) -> Sidecar:
    if not 0 <= size <= len(basis):
        raise ShapeError(
            f"The size is {size} bytes; it must be 0 to {len(basis)}, a byte for each coordinate "
            "of an old vector."
        )
    bits = allocated(bit_order(basis.values), 8 * size)
    # Bits fall with the eigenvalues, so that the first coordinates are the kept ones.
    rank = int((bits > 0).sum())
    shift = None if offset is None else offset.detach().double()
    own = basis.vectors[:, :rank], basis.values[:rank].sqrt(), bits[:rank]
    fitted = Sidecar(weight.detach().double(), shift, *own, trellis_levels(), 0.0, basis.power)
    coordinates = residual @ fitted.basis
    rounded = fitted._worth(fitted._codes(coordinates))
    missing = basis.values[rank:].sum() + (coordinates - rounded).square().mean(0).sum()
    return replace(fitted, missing=float(missing))


def _first(guess: int, count: int, enough: Callable[[int], bool]) -> int:
    """Return the first number from which on `enough` is true; `count` if there is none below it.
    Few numbers are tried if the guess is near."""
    low, high, place, step = 0, count, min(guess, count - 1), 1
    seen: set[bool] = set()
    while low < high:
        below = enough(place)
        seen.add(below)
        low, high = (low, place) if below else (place + 1, high)
        if len(seen) == 2:
            place = (low + high) // 2
        else:
            place = max(low, high - step) if below else min(high - 1, low + step)
        step *= 2
    return low


def _basis_of(residual: Tensor, old: Tensor | npt.NDArray[Any]) -> ResidualBasis:
    if not len(residual):
        raise DataError("There are no vectors to choose a sidecar by; give some.")
    power = float(_tensor(old).double().square().sum(1).mean())
    return ResidualBasis.of(residual.T @ residual / len(residual), power)


def _tensor(array: Tensor | npt.NDArray[Any]) -> Tensor:
    """Return an array as a tensor; a copy of one that torch cannot share, or warns of."""
    if isinstance(array, Tensor):
        return array
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def _like(vectors: Vectors, value: Tensor) -> Vectors:
    """Return a tensor as the kind of array that `vectors` are."""
    return value.numpy() if isinstance(vectors, np.ndarray) else value


def _mapped(
    weight: Tensor, offset: Tensor | None, new: Tensor, wide: torch.dtype = torch.float64
) -> Tensor:
    if new.dim() != 2 or new.shape[1] != weight.shape[1]:
        raise ShapeError(f"New vectors are {list(new.shape)}; [N, {weight.shape[1]}] is needed.")
    back = new.detach().to(wide) @ weight.detach().T.to(wide)
    return back if offset is None else back + offset.detach().to(wide)


def _residual(weight: Tensor, offset: Tensor | None, new: Vectors, old: Vectors) -> Tensor:
    """Return δ = z_{k-1} − W z_k − b, float64 [N, D_{k-1}]."""
    if tuple(old.shape) != (len(new), len(weight)):
        raise ShapeError(
            f"Old vectors are {list(old.shape)}; [{len(new)}, {len(weight)}] is needed, of the "
            "objects of the new ones."
        )
    before = _tensor(old).detach().double()
    residual = before - _mapped(weight, offset, _tensor(new))
    if not bool(residual.isfinite().all()):
        raise DataError("A vector has a NaN or an infinity; correct it or leave it out.")
    return residual
