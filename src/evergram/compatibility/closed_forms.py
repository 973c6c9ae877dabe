"""Backward transforms in closed form, from second moments; those of other pairs choose the ridge.

All of them minimise E[δᵀ S δ] + ρ‖W‖² for δ = W z_k − z_{k-1}, within their kind. S = I
is the single-step loss; S_{k-1} of `history_metric` is the multi-step one, times k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.collectives import ALONE, Collectives
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
# Ridges tried, as shares of the mean eigenvalue of C_kk, tr(C_kk) / D_k.
RIDGES: tuple[float, ...] = (0.0, *(10.0 ** (i / 2) for i in range(-16, 5)))
# A fitted map: W [D_{k-1}, D_k] and an offset [D_{k-1}].
Affine = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Spectrum:
    """The eigendecompositions of C_kk and S, made once; each ridge is then one division.

    Args:
        values, vectors: of C_kk, [D_k] and [D_k, D_k]; a value that is zero up to rounding is zero.
        metric_values, metric_vectors: of S, [D_{k-1}] and [D_{k-1}, D_{k-1}].
        cross: C_{k-1,k} in both bases, [D_{k-1}, D_k].
        unit: tr(C_kk) / D_k, what a relative ridge is multiplied by.
    """

    values: Tensor
    vectors: Tensor
    metric_values: Tensor
    metric_vectors: Tensor
    cross: Tensor
    unit: float

    @classmethod
    def of(
        cls, moments: SecondMoments, metric: Tensor | None = None, *, centred: bool = False
    ) -> Spectrum:
        """Decompose C_kk and S.

        Args:
            metric: S [D_{k-1}, D_{k-1}], positive definite; None is I.
            centred: take the moments about the means, for an affine map.
        Raises: ShapeError: S has another dim. DataError: there are no pairs.
        """
        new, cross, _ = moments.second(centred=centred)
        values, vectors = torch.linalg.eigh(new)
        # Sums of squares are exact up to thousands of eps of their terms, the means included.
        largest = float(values[-1]) + (float(moments.mean_new.square().sum()) if centred else 0.0)
        noise = torch.finfo(torch.float64).eps * 10_000 * largest
        values = torch.where(values > noise, values, 0.0)
        if metric is None:
            s, v = torch.ones(moments.old_dim, dtype=torch.float64), None
        else:
            if metric.shape != (moments.old_dim, moments.old_dim):
                raise ShapeError(
                    f"The metric is {list(metric.shape)}; the old dim is {moments.old_dim}."
                )
            s, v = torch.linalg.eigh(metric.double())
        basis = torch.eye(moments.old_dim, dtype=torch.float64) if v is None else v
        turned = cross @ vectors if v is None else v.T @ cross @ vectors
        return cls(values, vectors, s, basis, turned, float(new.trace()) / len(new))

    def inverse(self, ridge: float) -> Tensor:
        """Return 1 / (e_j + ridge), [D_k]; 0 in directions that no vector of the sample has."""
        return torch.where(self.values > 0, 1 / (self.values + ridge), 0.0)


def ridge(spectrum: Spectrum, rho: float = 0.0) -> Tensor:
    """Return W [D_{k-1}, D_k] with S W C_kk + ρ W = S C_{k-1,k}.

    With S = I it is C_{k-1,k} (C_kk + ρ I)^{-1}; and with ρ = 0 that for every S, as S drops out.
    Where C_kk is singular, W is the one of least norm.
    """
    s = spectrum.metric_values[:, None]
    e = spectrum.values
    turned = torch.where(e > 0, s * spectrum.cross / (s * e + rho), 0.0)
    return spectrum.metric_vectors @ turned @ spectrum.vectors.T


def reduced_rank(spectrum: Spectrum, rank: int, rho: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return L [D_{k-1}, r] and R [r, D_k] of the best W = L R of rank r.

    The ridge is ρ tr(S W Wᵀ) here, measured as the error is: then both are one norm, and W is the
    truncation of the full solution in the basis S^{1/2} · C_kk^{1/2}.
    Raises: ShapeError: a rank below 1 or above both dims.
    Source: Izenman, "Reduced-rank regression for the multivariate linear model", 1975.
    """
    most = min(spectrum.cross.shape)
    if not 1 <= rank <= most:
        raise ShapeError(f"The rank is {rank}; between these dims it must be 1 to {most}.")
    root = spectrum.metric_values.sqrt()[:, None]
    inverse = spectrum.inverse(rho)
    weighted = root * spectrum.cross
    left = torch.linalg.svd(weighted * inverse.sqrt(), full_matrices=False)[0][:, :rank]
    return (
        spectrum.metric_vectors @ (left / root),
        left.T @ (weighted * inverse) @ spectrum.vectors.T,
    )


def affine(moments: SecondMoments, weight: Tensor) -> Affine:
    """Return W and its best offset, b = m_{k-1} − W m_k.

    It is the best affine map if W was solved from centred moments.
    """
    return weight, moments.mean_old - weight @ moments.mean_new


def procrustes(
    moments: SecondMoments,
    metric: Tensor | None = None,
    *,
    scaled: bool = False,
    rounds: int = 100,
    tolerance: float = 1e-6,
) -> tuple[Tensor, float]:
    """Return Q [D_{k-1}, D_k], with orthonormal rows or columns, and c of the best W = c Q.

    If ‖Q z‖ cannot change (D_k ≤ D_{k-1}, S = I), Q is the polar factor of C_{k-1,k}. Otherwise no
    closed form is known: starting from that factor, or that of S C_{k-1,k} if it errs less, each
    round solves a Procrustes problem whose loss lies above the true one and touches it at the last
    Q, so no round makes it worse. A Q without error is the start, if D_k ≤ D_{k-1}.

    Args:
        scaled: True leaves c free; otherwise it is 1.
        rounds: the most that are tried.
        tolerance: a round that gains less, as a share of E‖z_{k-1}‖², is the last.
    Source: Schönemann 1966; the rounds are Kiers's majorisation, 1990 (Green and Gower's is its
        case of equal dims).
    """
    new, cross, _ = moments.second()
    pull = cross if metric is None else metric.double() @ cross

    def weigh(matrix: Tensor) -> Tensor:
        """S Q C_kk."""
        return matrix @ new if metric is None else metric.double() @ matrix @ new

    def best_scale(matrix: Tensor) -> float:
        if not scaled:
            return 1.0
        power = float((matrix * weigh(matrix)).sum())
        return float((matrix * pull).sum()) / power if power > 0 else 1.0

    def error_of(matrix: Tensor) -> float:
        return moments.error(best_scale(matrix) * matrix, metric=metric)

    turn = polar(cross)
    if metric is not None:
        turn = min(turn, polar(pull), key=error_of)
    scale = best_scale(turn)
    if metric is None and moments.new_dim <= moments.old_dim:
        return turn, scale
    steepest = float(torch.linalg.matrix_norm(new, 2))
    if metric is not None:
        steepest *= float(torch.linalg.matrix_norm(metric.double(), 2))
    error = moments.error(scale * turn, metric=metric)
    for _ in range(rounds):
        better = polar(pull + scale * (steepest * turn - weigh(turn)))
        free = best_scale(better)
        reached = moments.error(free * better, metric=metric)
        if reached >= error:
            break
        gained, turn, scale, error = error - reached, better, free, reached
        if gained < tolerance * moments.power:
            break
    return turn, scale


def polar(matrix: Tensor) -> Tensor:
    """Return the orthonormal matrix nearest to a matrix [m, n]: U Vᵀ of its singular values.

    Directions that the matrix does not determine are filled up to orthonormal ones.
    """
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    nearest: Tensor = left @ right
    return nearest


def choose_ridge(
    fit: Callable[[float], Affine],
    unit: float,
    held: SecondMoments,
    metric: Tensor | None = None,
    *,
    tolerance: float = 0.0,
) -> float:
    """Return the ρ of `RIDGES` whose fit has the least error on held-out pairs, or near the least.

    Of ridges whose errors differ by rounding only, return the smallest. No pair is read again.

    Args:
        fit: ρ to a map.
        unit: the factor of the relative `RIDGES`.
        held: moments of the held-out pairs.
        metric: S, for the error at all past versions; None for that at the last one.
        tolerance: the share of the least error that may be added for a larger ρ; with one, the
            largest such ρ is returned, whose map is the smallest.
    """
    tried = {rho * unit: held.error(*fit(rho * unit), metric) for rho in RIDGES}
    nothing = torch.zeros(held.old_dim, held.new_dim, dtype=torch.float64)
    enough = min(tried.values()) + 1e-12 * held.error(nothing, None, metric)
    if tolerance:
        return max(rho for rho, error in tried.items() if error <= (1 + tolerance) * enough)
    return next(rho for rho, error in tried.items() if error <= enough)


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
    whole = moments if held is None else moments.plus(held)
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
