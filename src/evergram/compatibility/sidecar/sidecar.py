"""`Sidecar`: a few bytes beside each new vector, with which an old reader gets the old one back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evergram.compatibility.sidecar.residual_basis import ResidualBasis
from evergram.errors import DataError, ShapeError

# The largest code of int8; −128 is not used, so that the codes are symmetric.
MOST = 127
Vectors = TypeVar("Vectors", Tensor, npt.NDArray[Any])


@dataclass(frozen=True)
class Sidecar:
    """The way back, and the first r coordinates of what it leaves, in int8.

    Only the new vectors and the codes are stored. A new reader takes the new vectors as they are;
    an old one reads W z_k + b + U (codes · scales). Vectors are tensors or NumPy arrays, and what
    is returned is of the same kind.

    Args:
        weight: W [D_{k-1}, D_k]; offset: b [D_{k-1}], or None.
        basis: U [D_{k-1}, r], orthonormal columns.
        scales: [r], what one step of a code is worth; 0 for a coordinate that is always 0.
        left: the mean square that the other coordinates hold, Σ_{j > r} λ_j.
        power: E‖z_{k-1}‖².

    >>> import torch
    >>> from evergram.compatibility.sidecar.sidecar import Sidecar
    >>> new = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))
    >>> old = torch.tanh(new @ torch.ones(6, 4) + new[:, :4])
    >>> sidecar = Sidecar.fit(torch.eye(4, 6), None, new, old, rank=2)
    >>> codes = sidecar.encode(new, old)
    >>> codes.shape, codes.dtype
    (torch.Size([500, 2]), torch.int8)
    >>> error = (sidecar.read(new, codes) - old).square().sum(1).mean() / old.square().sum(1).mean()
    >>> abs(float(error.sqrt()) - sidecar.relative_error) < 0.01
    True
    """

    weight: Tensor
    offset: Tensor | None
    basis: Tensor
    scales: Tensor
    left: float
    power: float

    @classmethod
    def fit(
        cls, weight: Tensor, offset: Tensor | None, new: Vectors, old: Vectors, rank: int
    ) -> Sidecar:
        """Choose basis and scales by objects whose old and new vectors are there.

        Args:
            weight, offset: the way back, as `Aligner.as_transform().affine()` has it.
            new: z_k [N, D_k]; old: z_{k-1} [N, D_{k-1}], of the same objects.
            rank: r, 0 to D_{k-1}; `fit_for_error` chooses it.
        Raises: ShapeError: shapes or rank do not fit. DataError: there are no objects, or the old
            vectors are all zero, or a number is not finite.
        """
        basis, scales = _basis_and_scales(weight, offset, new, old)
        left = basis.relative_error(rank) ** 2 * basis.power
        shift = None if offset is None else offset.detach().double()
        back = weight.detach().double()
        return cls(back, shift, basis.vectors[:, :rank], scales[:rank], left, basis.power)

    @classmethod
    def fit_for_error(
        cls, weight: Tensor, offset: Tensor | None, new: Vectors, old: Vectors, error: float
    ) -> Sidecar:
        """As `fit`, with the fewest coordinates for which `relative_error` is at most `error`.

        Raises: DataError: no number of coordinates leaves so little, as each is rounded; or as of
            `fit`.
        """
        if not error >= 0:
            raise DataError(f"The error is {error:g}; it must be a number of 0 or more.")
        basis, scales = _basis_and_scales(weight, offset, new, old)
        zero = scales.new_zeros(1)
        rounding = torch.cat([zero, scales.square().cumsum(0) / 12])
        missing = torch.cat([basis.values.flip(0).cumsum(0).flip(0), zero])
        errors = ((missing + rounding) / basis.power).sqrt()
        enough = (errors <= error).nonzero()
        if not len(enough):
            best = int(errors.argmin())
            raise DataError(
                f"No sidecar of int8 leaves a relative error of {error:g}; the least is "
                f"{float(errors[best]):.2g}, with {best} bytes a vector. Allow so much, or keep "
                "the old vectors."
            )
        return cls.fit(weight, offset, new, old, int(enough[0]))

    @property
    def rank(self) -> int:
        """r, which is also the bytes beside each vector."""
        return self.basis.shape[1]

    @property
    def relative_error(self) -> float:
        """√(E‖error‖² / E‖z_{k-1}‖²) of reading, as predicted: of the coordinates that are left
        out, and of rounding to steps of s, whose mean square is s² / 12."""
        rounding = float(self.scales.square().sum()) / 12
        return math.sqrt((self.left + rounding) / self.power)

    def coordinates(self, new: Vectors, old: Vectors) -> Vectors:
        """Return the coordinates before rounding, float64 [N, r]. Raises: as of `encode`."""
        return _like(new, self._coordinates(new, old))

    def encode(self, new: Vectors, old: Vectors) -> Vectors:
        """Return the codes of objects, int8 [N, r]; a coordinate beyond the largest of `fit` is
        stored as the largest.

        Raises: ShapeError: shapes do not fit. DataError: a number is not finite.
        """
        steps = torch.where(self.scales > 0, self.scales, 1.0)
        codes = (self._coordinates(new, old) / steps).round().clamp(-MOST, MOST)
        return _like(new, torch.where(self.scales > 0, codes, 0.0).to(torch.int8))

    def read(self, new: Vectors, codes: Tensor | npt.NDArray[np.int8]) -> Vectors:
        """Return the old vectors of objects, [N, D_{k-1}], of the type of `new`.

        Args:
            codes: [N, r] of `encode`.
        Raises: ShapeError: they are of other objects, or of another sidecar.
        """
        steps = torch.as_tensor(codes)
        if steps.shape != (len(new), self.rank) or steps.dtype != torch.int8:
            raise ShapeError(
                f"The codes are {list(steps.shape)} of {steps.dtype}; int8 "
                f"[{len(new)}, {self.rank}] is needed, one row for each vector."
            )
        read = self.read_coordinates(torch.as_tensor(new), steps * self.scales)
        return _like(new, read.to(torch.as_tensor(new).dtype))

    def read_coordinates(self, new: Tensor, coordinates: Tensor) -> Tensor:
        """Return the old vectors by coordinates that were not rounded, float64 [N, D_{k-1}]."""
        return _mapped(self.weight, self.offset, new) + coordinates.double() @ self.basis.T

    def _coordinates(self, new: Vectors, old: Vectors) -> Tensor:
        return _residual(self.weight, self.offset, new, old) @ self.basis


def _basis_and_scales(
    weight: Tensor, offset: Tensor | None, new: Vectors, old: Vectors
) -> tuple[ResidualBasis, Tensor]:
    """Return the basis of what the way back leaves, and what a step of each coordinate is worth."""
    residual = _residual(weight, offset, new, old)
    if not len(residual):
        raise DataError("There are no vectors to choose a sidecar by; give some.")
    power = float(torch.as_tensor(old).double().square().sum(1).mean())
    basis = ResidualBasis.of(residual.T @ residual / len(residual), power)
    # A column that is zero up to rounding has the scale 0 and is stored as zeros.
    largest = (residual @ basis.vectors).abs().amax(0)
    return basis, torch.where(largest > math.sqrt(power) * 1e-12, largest / MOST, 0.0)


def _like(vectors: Vectors, value: Tensor) -> Vectors:
    """Return a tensor as the kind of array that `vectors` are."""
    return value.numpy() if isinstance(vectors, np.ndarray) else value


def _mapped(weight: Tensor, offset: Tensor | None, new: Tensor) -> Tensor:
    if new.dim() != 2 or new.shape[1] != weight.shape[1]:
        raise ShapeError(f"New vectors are {list(new.shape)}; [N, {weight.shape[1]}] is needed.")
    back = new.detach().double() @ weight.detach().double().T
    return back if offset is None else back + offset.detach().double()


def _residual(weight: Tensor, offset: Tensor | None, new: Vectors, old: Vectors) -> Tensor:
    """Return δ = z_{k-1} − W z_k − b, float64 [N, D_{k-1}]."""
    if tuple(old.shape) != (len(new), len(weight)):
        raise ShapeError(
            f"Old vectors are {list(old.shape)}; [{len(new)}, {len(weight)}] is needed, of the "
            "objects of the new ones."
        )
    before = torch.as_tensor(old).detach().double()
    residual = before - _mapped(weight, offset, torch.as_tensor(new))
    if not bool(residual.isfinite().all()):
        raise DataError("A vector has a NaN or an infinity; correct it or leave it out.")
    return residual
