"""The basis in which the fewest coordinates hold most of what the way back leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.errors import DataError, ShapeError


@dataclass(frozen=True)
class ResidualBasis:
    """The eigenvectors of Σ = E[δ δᵀ], where δ = z_{k-1} − W z_k − b, largest eigenvalue first.

    Along them coordinates are uncorrelated, so that none repeats what another says, and the first r
    hold more of δ than any other r numbers that are linear in it: all but Σ_{j > r} λ_j.

    Args:
        values: λ, float64 [D_{k-1}], none below 0.
        vectors: float64 [D_{k-1}, D_{k-1}], one eigenvector a column.
        power: E‖z_{k-1}‖², the divisor of relative errors.
    Source: Eckart and Young, "The approximation of one matrix by another of lower rank", 1936.
    """

    values: Tensor
    vectors: Tensor
    power: float

    @classmethod
    def of(cls, sigma: Tensor, power: float) -> ResidualBasis:
        """Return the basis of a residual covariance.

        Args:
            sigma: [D_{k-1}, D_{k-1}], as `SecondMoments.sigma` and `StepError.sigma` have it.
            power: as of `StepError.power`.
        Raises: ShapeError: it is not a square matrix. DataError: a number is not finite, or the
            power is not above 0.
        """
        cls._check(sigma, power)
        values, vectors = torch.linalg.eigh(sigma.double())
        # A sign of their own: that of the largest coordinate, so that equal input gives equal bits.
        largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
        vectors = vectors * torch.where(largest < 0, -1.0, 1.0)
        return cls(values.flip(0).clamp(min=0), vectors.flip(1).contiguous(), power)

    def on(self, sigma: Tensor, power: float) -> ResidualBasis:
        """Return the same directions, in their order, with what other objects have along them.

        Eigenvalues are too large first and too small last on the objects that they were taken from,
        and predict too few bits; what is measured on other objects does not.

        Args:
            sigma, power: as of `of`, of objects that the basis was not made of.
        Raises: ShapeError: the covariance is of other dims. DataError: as of `of`.
        """
        ResidualBasis._check(sigma, power)
        if len(sigma) != len(self):
            raise ShapeError(f"The covariance is {list(sigma.shape)}, and the basis {len(self)}.")
        values = (self.vectors * (sigma.double() @ self.vectors)).sum(0)
        return ResidualBasis(values.clamp(min=0), self.vectors, power)

    @staticmethod
    def _check(sigma: Tensor, power: float) -> None:
        if sigma.dim() != 2 or sigma.shape[0] != sigma.shape[1]:
            raise ShapeError(f"The covariance is {list(sigma.shape)}; [D, D] is needed.")
        if not bool(sigma.isfinite().all()) or not 0 < power < math.inf:
            raise DataError(
                f"The covariance of the error, or the mean square {power:g} of the old vectors, "
                "is not a finite number above 0; give those of vectors that are not all zero."
            )

    def __len__(self) -> int:
        return len(self.values)
