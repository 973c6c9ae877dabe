"""Fit one transform in closed form to two sides whose errors are weighed by different matrices.

For an unconstrained linear map the weighing of a single side drops out; that of two sides does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.compatibility.closed_form_fit import ClosedForm
from evergram.compatibility.closed_form_solvers import RIDGES, Affine
from evergram.compatibility.second_moments import SecondMoments
from evergram.compatibility.transforms import AffineTransform, LinearTransform, Transform
from evergram.errors import DataError, ShapeError

KINDS = ("linear", "affine")


@dataclass(frozen=True)
class SideMoments:
    """The pairs of one side, and the matrix that weighs its errors.

    Args:
        moments: of pairs that are fitted to.
        held: of other pairs, which choose the ridge and are then fitted to as well.
        metric: S [D_{k-1}, D_{k-1}], positive definite; None is I.
    """

    moments: SecondMoments
    held: SecondMoments
    metric: Tensor | None

    @property
    def weighing(self) -> Tensor:
        if self.metric is None:
            return torch.eye(self.moments.old_dim, dtype=torch.float64)
        return self.metric.double()

    def merged(self) -> SideMoments:
        """Return the side with its held pairs among those that are fitted to."""
        whole = SecondMoments(self.moments.old_dim, self.moments.new_dim)
        whole.merge(self.moments)
        whole.merge(self.held)
        return SideMoments(whole, self.held, self.metric)


def fit_sides(
    kind: str, first: SideMoments, second: SideMoments, *, tolerance: float = 0.0
) -> ClosedForm:
    """Return the transform with the least Σ_s n_s E_s[δᵀ S_s δ] over two sides.

    The ridge is ρ Σ_s n_s tr(S_s W Wᵀ), measured as the errors are; offsets have none.

    Args:
        kind: "linear" or "affine".
        tolerance: as of `fit_closed_form`.
    Raises: ShapeError: another kind has no closed form for two matrices. DataError: no pairs.
    Source: docs/method.md, "Consumers that are known".
    """
    if kind not in KINDS:
        raise ShapeError(
            f"The transform {kind!r} has no closed form for two sides that are weighed by "
            f"different matrices; {' and '.join(KINDS)} have one."
        )
    sides = first, second
    offset = kind == "affine"
    unit = _power(sides)
    errors = {
        rho: held_error(solve(sides, rho, offset=offset), sides)
        for rho in (ridge * unit for ridge in RIDGES)
    }
    zero = torch.zeros(first.moments.old_dim, first.moments.new_dim, dtype=torch.float64)
    # Of ridges whose errors differ by rounding only, the smallest.
    enough = min(errors.values()) + 1e-12 * held_error((zero, None), sides)
    near = [rho for rho, error in sorted(errors.items()) if error <= (1 + tolerance) * enough]
    rho = near[-1] if tolerance else near[0]
    weight, shift = solve([side.merged() for side in sides], rho, offset=offset)
    made: Transform
    if shift is not None:
        made = AffineTransform.from_matrix(weight.float(), shift.float())
    else:
        made = LinearTransform.from_matrix(weight.float())
    return ClosedForm(made, rho, weight, shift)


def solve(sides: Sequence[SideMoments], rho: float, *, offset: bool = False) -> Affine:
    """Return W [D_{k-1}, D_k] with Σ_s n_s S_s (W (C_s + ρ I) − X_s) = 0, and the offset.

    C_s and X_s are the second moments C_kk and C_{k-1,k} of side s. One basis diagonalises both
    S_s and one both C_s, so that W is a division there. Where all C_s are singular, W is 0.

    Args:
        sides: two of them; one without pairs does not count.
        offset: fit an offset as well, as the weight of a constant 1 in z_k, without ridge.
    Raises: DataError: there are no pairs.
    """
    full = [side for side in sides if side.moments.count]
    if not full:
        raise DataError("There are no pairs to fit a transform to; add some first.")
    total = sum(side.moments.count for side in full)
    grams, pull = [], torch.zeros(())
    for side in full:
        share = side.moments.count / total
        gram, cross = _moments(side.moments, rho, offset=offset)
        grams.append(share * gram)
        pull = pull + share * side.weighing @ cross
    if len(full) == 1:
        # Nothing is beside it to be weighed against.
        grams.append(torch.zeros_like(grams[0]))
        full.append(full[0])
    left, alpha = _shared_basis(full[0].weighing, full[1].weighing)
    right, gamma = _shared_basis(*grams)
    # Both pairs sum to 1 in their bases: α and 1 − α, γ and 1 − γ.
    both = alpha[:, None] * gamma + (1 - alpha)[:, None] * (1 - gamma)
    weight = left @ ((left.T @ pull @ right) / both) @ right.T
    return (weight[:, :-1], weight[:, -1]) if offset else (weight, None)


def held_error(fitted: Affine, sides: Sequence[SideMoments]) -> float:
    """Return Σ_s n_s E_s[δᵀ S_s δ] over the held pairs; 0 if there are none."""
    return sum(
        side.held.count * side.held.error(*fitted, side.metric) for side in sides if side.held.count
    )


def _moments(moments: SecondMoments, rho: float, *, offset: bool) -> tuple[Tensor, Tensor]:
    """Return C + ρ I and X; with an offset, of z_k with a constant 1 at its end."""
    gram, cross, _ = moments.second()
    gram = gram + rho * torch.eye(len(gram), dtype=torch.float64)
    if not offset:
        return gram, cross
    mean = moments.mean_new[:, None]
    one = torch.ones(1, 1, dtype=torch.float64)
    gram = torch.cat([torch.cat([gram, mean], 1), torch.cat([mean.T, one], 1)])
    return gram, torch.cat([cross, moments.mean_old[:, None]], 1)


def _shared_basis(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return P [D, r] with Pᵀ (A + B) P = I and Pᵀ A P diagonal, and that diagonal [r].

    r is the rank of A + B, up to rounding.
    """
    values, vectors = torch.linalg.eigh(first + second)
    kept = values > torch.finfo(torch.float64).eps * 10_000 * values[-1]
    basis = vectors[:, kept] / values[kept].sqrt()
    shares, turn = torch.linalg.eigh(basis.T @ first @ basis)
    return basis @ turn, shares.clamp(0, 1)


def _power(sides: Sequence[SideMoments]) -> float:
    """Return tr C_kk / D_k over the pairs of both sides."""
    full = [side.moments for side in sides if side.moments.count]
    total = sum(moments.count for moments in full)
    traces = (m.count * float(m.second()[0].trace()) / m.new_dim for m in full)
    return sum(traces) / total if total else 0.0
