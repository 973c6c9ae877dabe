"""Fit an affine backward transform to second moments; those of other pairs choose the ridge."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.collectives import ALONE, Collectives
from evergram.compatibility.closed_form_solvers import (
    Affine,
    Spectrum,
    affine,
    choose_ridge,
    procrustes,
    reduced_rank,
    ridge,
)
from evergram.compatibility.second_moments import SecondMoments
from evergram.compatibility.transforms import (
    AffineTransform,
    LinearTransform,
    LowRankTransform,
    OrthogonalTransform,
    Transform,
)
from evergram.errors import ShapeError

KINDS = ("linear", "affine", "orthogonal", "low_rank")
# Pairs needed for each free number of an old coordinate. The excess error of least squares is then
# about 1/(3 − 1), and the ridge reduces it.
PAIRS_PER_NUMBER = 3
# One in so many pairs chooses the ridge.
FOR_RIDGE = 10


@dataclass(frozen=True)
class ClosedForm:
    """A fitted transform.

    Args:
        transform: in float32, ready to publish; the scaled orthogonal one is of kind "linear".
        ridge: ρ; 0 without a ridge.
        weight, offset: the map in float64, W [D_{k-1}, D_k] and b [D_{k-1}].
    """

    transform: Transform
    ridge: float
    weight: Tensor
    offset: Tensor | None


def fit_closed_form(
    kind: str,
    moments: SecondMoments,
    held: SecondMoments | None = None,
    metric: Tensor | None = None,
    *,
    rank: int = 32,
    scaled: bool = False,
    rho: float = 0.0,
    tolerance: float = 0.0,
) -> ClosedForm:
    """Return the best transform of a kind for the pairs of these moments.

    Args:
        kind: one of `KINDS`.
        held: moments of other pairs, which choose ρ and are then fitted to as well; None uses
            `rho`.
        metric: S_{k-1} of `history_metric` for the multi-step loss; None for the single-step one.
        rank: of "low_rank".
        scaled: True lets "orthogonal" stretch by one factor.
        rho: ρ without `held`, in the unit of C_kk; an orthogonal map has none.
        tolerance: with `held`, the share of the least error that may be added for a smaller map.
    Raises: ShapeError: the kind has no closed form, or the rank exceeds the dims.
    """
    if kind not in KINDS:
        raise ShapeError(f"The transform {kind!r} has no closed form; {', '.join(KINDS)} have one.")
    whole = moments
    if held is not None:
        whole = SecondMoments(moments.old_dim, moments.new_dim)
        whole.merge(moments)
        whole.merge(held)
    if kind == "orthogonal":
        turn, scale = procrustes(whole, metric, scaled=scaled)
        weight = scale * turn
        made: Transform = (LinearTransform if scaled else OrthogonalTransform).from_matrix(
            weight.float()
        )
        return ClosedForm(made, 0.0, weight, None)
    centred = kind == "affine"

    def solve(some: SecondMoments, spectrum: Spectrum, rho: float) -> Affine:
        if kind == "low_rank":
            left, right = reduced_rank(spectrum, rank, rho)
            return left @ right, None
        weight = ridge(spectrum, rho)
        return affine(some, weight) if centred else (weight, None)

    if held is not None:
        seen = Spectrum.of(moments, metric, centred=centred)
        rho = choose_ridge(
            lambda r: solve(moments, seen, r), seen.unit, held, metric, tolerance=tolerance
        )
    spectrum = Spectrum.of(whole, metric, centred=centred)
    weight, offset = solve(whole, spectrum, rho)
    if kind == "low_rank":
        factors = reduced_rank(spectrum, rank, rho)
        made = LowRankTransform.from_factors(*(f.float() for f in factors))
    elif offset is not None:
        made = AffineTransform.from_matrix(weight.float(), offset.float())
    else:
        made = LinearTransform.from_matrix(weight.float())
    return ClosedForm(made, rho, weight, offset)


def pairs_needed(kind: str, old_dim: int, new_dim: int, rank: int = 32) -> int:
    """Return how many pairs a fit should have: three for each free number of a coordinate."""
    small, large = sorted((old_dim, new_dim))
    free = {
        "linear": old_dim * new_dim,
        "affine": old_dim * (new_dim + 1),
        "orthogonal": small * large - small * (small + 1) // 2,
        "low_rank": rank * (old_dim + new_dim - rank),
    }[kind]
    return math.ceil(PAIRS_PER_NUMBER * free / old_dim)


def moments_by_use(
    new: Tensor, old: Tensor, together: Collectives = ALONE
) -> tuple[SecondMoments, SecondMoments]:
    """Return the moments of the pairs that are fitted to, and of those that choose the ridge.

    Args:
        new: z_k [N, D_k]; old: z_{k-1} [N, D_{k-1}], of the same objects.
        together: processes that each call this with the same pairs. Each multiplies a share of
            them, and all have the moments of all.
    """
    own = together.share(len(new))
    apart = (torch.arange(len(new)) % FOR_RIDGE == 0)[own]
    old, new = old[own], new[own]
    seen, held = (SecondMoments(old.shape[1], new.shape[1]) for _ in range(2))
    seen.add(old[~apart], new[~apart])
    held.add(old[apart], new[apart])
    return seen.summed(together), held.summed(together)
