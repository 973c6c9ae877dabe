"""Second moments of pairs (z_{k-1}, z_k), and backward transforms solved from them in closed form.

Each kind of transform minimises E[δᵀ S δ] + ρ‖W‖² with δ = W z_k − z_{k-1}. S = I gives the
single-step loss; S_{k-1} of `history_metric` gives k times the multi-step loss. The ridge ρ is
chosen on separate pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from evergram.collectives import ALONE, Collectives
from evergram.compatibility.transforms import (
    AffineTransform,
    LinearTransform,
    LowRankTransform,
    OrthogonalTransform,
    Transform,
)
from evergram.errors import DataError, ShapeError

PANEL = 256  # columns per matrix product; blocks below the diagonal are never computed
ROUNDING = 1e-10  # a variance below this share of the mean square is rounding error
# Range of lengths whose squares fit float32, as searches need; shorter vectors count as zero.
SHORTEST, LONGEST = 1e-15, 1e15
# Highest allowed share of zero vectors on one side; failed encoder calls leave zeros.
MOST_ZEROS = 0.05


class SecondMoments:
    """Count, sums and second moments of pairs of vectors, accumulated in one pass in float64.

    With x = (1, z_k, z_{k-1}) this is the matrix Σ x xᵀ, so shards are merged by addition.

    C_{k-1,k} is the H of docs/method.md, "Priors", with the old vectors as prior factors.
    `evergram.gramian.estimator.Moment` estimates the same two matrices for embeddings that change
    during training.

    Args:
        old_dim, new_dim: D_{k-1} and D_k.
    Source: docs/method.md, "Closed forms".
    """

    def __init__(self, old_dim: int, new_dim: int) -> None:
        self.old_dim = old_dim
        self.new_dim = new_dim
        size = 1 + new_dim + old_dim
        # Only panels on and above the diagonal are valid. `_excess` is the rounding error of
        # `_sum`; without it, large means would swamp a small variance over many rows.
        self._sum = torch.zeros(size, size, dtype=torch.float64)
        self._excess = torch.zeros(size, size, dtype=torch.float64)

    def add(self, old: Tensor, new: Tensor) -> None:
        """Add a block of pairs, old [b, D_{k-1}] and new [b, D_k].

        Raises: ShapeError: the numbers of rows differ, or a dim is wrong.
        """
        if old.shape != (len(new), self.old_dim) or new.shape != (len(old), self.new_dim):
            raise ShapeError(
                f"Old vectors are {list(old.shape)} and new ones {list(new.shape)}; they must be "
                f"[b, {self.old_dim}] and [b, {self.new_dim}] of the same b objects."
            )
        rows = torch.empty(len(new), len(self._sum), dtype=torch.float64)
        rows[:, 0] = 1
        rows[:, 1 : 1 + self.new_dim] = new.detach()
        rows[:, 1 + self.new_dim :] = old.detach()
        for start in range(0, len(self._sum), PANEL):
            panel = slice(start, start + PANEL)
            products = rows[:, panel].T @ rows[:, start:]
            _add_compensated(self._sum[panel, start:], self._excess[panel, start:], products)

    def merge(self, other: SecondMoments) -> None:
        """Add the pairs of another accumulator. Raises: ShapeError: its dims differ."""
        if (other.old_dim, other.new_dim) != (self.old_dim, self.new_dim):
            raise ShapeError(
                f"Moments of dims {other.old_dim} and {other.new_dim} cannot be merged into "
                f"moments of dims {self.old_dim} and {self.new_dim}."
            )
        _add_compensated(self._sum, self._excess, other._sum - other._excess)

    def plus(self, *others: SecondMoments) -> SecondMoments:
        """Return the moments of these and the other pairs together."""
        total = SecondMoments(self.old_dim, self.new_dim)
        for moments in (self, *others):
            total.merge(moments)
        return total

    def summed(self, together: Collectives) -> SecondMoments:
        """Return the moments summed over all processes."""
        if together.size == 1:
            return self
        total = SecondMoments(self.old_dim, self.new_dim)
        total._sum = together.sum(self._sum - self._excess, "moments")
        return total

    @property
    def count(self) -> int:
        """Number of pairs."""
        return round(float(self._sum[0, 0]))

    @property
    def mean_old(self) -> Tensor:
        """float64 [D_{k-1}]."""
        return self._mean()[1 + self.new_dim :]

    @property
    def mean_new(self) -> Tensor:
        """float64 [D_k]."""
        return self._mean()[1 : 1 + self.new_dim]

    def second(self, *, centred: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return C_kk [D_k, D_k], C_{k-1,k} [D_{k-1}, D_k] and C_{k-1,k-1}, float64.

        Args:
            centred: return covariances, i.e. subtract the means.
        Raises: DataError: there are no pairs.
        """
        mean = self._mean()
        joint = self._symmetric() / self._sum[0, 0]
        if centred:
            joint = joint - mean[:, None] * mean
        new, old = slice(1, 1 + self.new_dim), slice(1 + self.new_dim, None)
        return joint[new, new], joint[old, new], joint[old, old]

    def sigma(self, weight: Tensor, offset: Tensor | None = None) -> Tensor:
        """Return E[δ δᵀ], float64 [D_{k-1}, D_{k-1}], with δ = W z_k + b − z_{k-1}.

        Args:
            weight: W [D_{k-1}, D_k].
            offset: b [D_{k-1}].
        """
        w = self._checked_weight(weight)
        new, cross, old = self.second(centred=True)
        mixed = w @ cross.T
        shift = self._shift(w, offset)
        return w @ new @ w.T - mixed - mixed.T + old + shift[:, None] * shift

    def error(
        self, weight: Tensor, offset: Tensor | None = None, metric: Tensor | None = None
    ) -> float:
        """Return E[δᵀ S δ], with δ as in `sigma`; for S = I it is the mean of ‖δ‖².

        Args:
            weight, offset: as in `sigma`.
            metric: S [D_{k-1}, D_{k-1}]; None for I.
        """
        if metric is not None:
            return max(float((self.sigma(weight, offset) * metric.double()).sum()), 0.0)
        # The trace of sigma needs one matrix product instead of three.
        w = self._checked_weight(weight)
        new, cross, old = self.second(centred=True)
        shift = self._shift(w, offset)
        squared = ((w @ new) * w).sum() - 2 * (w * cross).sum() + old.trace() + shift @ shift
        # max(NaN, 0.0) is NaN; max(0.0, NaN) would hide it.
        return max(float(squared), 0.0)

    def _checked_weight(self, weight: Tensor) -> Tensor:
        if weight.shape != (self.old_dim, self.new_dim):
            raise ShapeError(
                f"The matrix is {list(weight.shape)}; these moments need "
                f"[{self.old_dim}, {self.new_dim}]."
            )
        return weight.detach().double().cpu()

    def _shift(self, weight: Tensor, offset: Tensor | None) -> Tensor:
        """E[δ]."""
        shift = weight @ self.mean_new - self.mean_old
        return shift if offset is None else shift + offset.detach().double().cpu()

    @property
    def power(self) -> float:
        """E‖z_{k-1}‖², the denominator of relative errors."""
        return float(self.second()[2].trace())

    def _symmetric(self) -> Tensor:
        upper = self._sum.triu()
        return upper + upper.triu(1).T

    def _mean(self) -> Tensor:
        if self.count < 1:
            raise DataError("There are no pairs to average; add some first.")
        return self._sum[0] / self._sum[0, 0]


def _add_compensated(total: Tensor, excess: Tensor, term: Tensor) -> None:
    """Add `term` to `total` in place; `excess` carries the rounding error. Source: Kahan, 1965."""
    term = term - excess
    after = total + term
    excess.copy_((after - total) - term)
    total.copy_(after)


@dataclass
class LengthCount:
    """Counts rows and zero vectors over any number of blocks."""

    rows: int = 0
    zeros: int = 0

    def add(self, vectors: Tensor) -> int | None:
        """Count vectors [n, D]. Return the first row longer than `LONGEST` or not finite, or None
        if there is no such row."""
        lengths = torch.linalg.vector_norm(vectors.detach(), dim=1, dtype=torch.float64)
        self.rows += len(lengths)
        self.zeros += int((lengths < SHORTEST).sum())
        too_long = (~(lengths <= LONGEST)).nonzero()
        return int(too_long[0]) if len(too_long) else None


def vectors_problem(
    rows: int, zeros: int, second: Tensor, spread: Tensor, most_zeros: float = MOST_ZEROS
) -> str | None:
    """Return why one side's vectors cannot be published or aligned, as the end of a sentence, or
    None if they can.

    Args:
        zeros: number of zero rows; `most_zeros` is the highest allowed share.
        second, spread: E[z zᵀ] and the covariance of z, [D, D], over all rows or a sample.
    """
    if zeros > most_zeros * rows:
        return f"{zeros} of {rows} are zero; at most {most_zeros:.0%} may be"
    length = float(second.trace()) ** 0.5
    if not SHORTEST <= length <= LONGEST:
        return (
            f"their root mean square length is {length:.3g}; {SHORTEST:g} to {LONGEST:g} is allowed"
        )
    if rows > 1 and float(spread.trace()) <= ROUNDING * float(second.trace()):
        return "all of them are the same"
    # On a line, one eigenvalue λ₁ holds the whole trace: (Σλ)² − Σλ² ≈ 2 λ₁ Σ_{j>1} λ_j is then 0.
    # Two vectors always lie on a line, and so do numbers.
    trace = float(spread.trace())
    off_line = trace**2 - float(spread.square().sum())
    if rows > 2 and len(spread) > 1 and off_line <= 2 * ROUNDING * trace**2:
        return "all of them lie on one line"
    return None


def degenerate_side(
    moments: SecondMoments, zeros: tuple[int, int], most_zeros: float = MOST_ZEROS
) -> tuple[Literal["old", "new"], str] | None:
    """Return the side whose vectors cannot be aligned, and the reason; None if both can be.

    Args:
        zeros: number of zero vectors among the old and among the new ones.
    Raises: DataError: there are no pairs.
    """
    (new, _, old), (new_spread, _, old_spread) = moments.second(), moments.second(centred=True)
    sides: tuple[tuple[Literal["old", "new"], int, Tensor, Tensor], ...] = (
        ("old", zeros[0], old, old_spread),
        ("new", zeros[1], new, new_spread),
    )
    for side, side_zeros, square, spread in sides:
        problem = vectors_problem(moments.count, side_zeros, square, spread, most_zeros)
        if problem is not None:
            return side, problem
    return None


KINDS = ("linear", "affine", "orthogonal", "low_rank")
# Pairs needed per free parameter of an old coordinate. The relative excess error of least squares
# is then about 1/(3 − 1), and the ridge reduces it.
PAIRS_PER_NUMBER = 3
FOR_RIDGE = 10  # every tenth pair is used to choose the ridge
# Candidate ridges, relative to the mean eigenvalue of C_kk, tr(C_kk) / D_k.
RIDGES: tuple[float, ...] = (0.0, *(10.0 ** (i / 2) for i in range(-16, 5)))
Affine = tuple[Tensor, Tensor | None]  # a fitted map: W [D_{k-1}, D_k] and an offset [D_{k-1}]


@dataclass(frozen=True)
class Spectrum:
    """The eigendecompositions of C_kk and S, computed once, so that a ridge costs one division."""

    # Of C_kk, [D_k] and [D_k, D_k]; values at rounding level are set to 0.
    values: Tensor
    vectors: Tensor
    # Of S, [D_{k-1}] and [D_{k-1}, D_{k-1}]
    metric_values: Tensor
    metric_vectors: Tensor
    cross: Tensor  # C_{k-1,k} in both eigenbases, [D_{k-1}, D_k]
    unit: float  # tr(C_kk) / D_k, the unit of relative ridges

    @classmethod
    def of(
        cls, moments: SecondMoments, metric: Tensor | None = None, *, centred: bool = False
    ) -> Spectrum:
        """Decompose C_kk and S.

        Args:
            metric: S [D_{k-1}, D_{k-1}], positive definite; None for I.
            centred: use covariances, for an affine map.
        Raises: ShapeError: S has the wrong dim. DataError: there are no pairs.
        """
        new, cross, _ = moments.second(centred=centred)
        values, vectors = torch.linalg.eigh(new)
        # Sums of squares are accurate to thousands of eps relative to their terms, means included.
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
        rotated = cross @ vectors if v is None else v.T @ cross @ vectors
        return cls(values, vectors, s, basis, rotated, float(new.trace()) / len(new))

    def inverse(self, ridge: float) -> Tensor:
        """Return 1 / (e_j + ridge), [D_k], or 0 where the eigenvalue e_j is 0."""
        return torch.where(self.values > 0, 1 / (self.values + ridge), 0.0)


def ridge(spectrum: Spectrum, rho: float = 0.0) -> Tensor:
    """Return the W [D_{k-1}, D_k] that solves S W C_kk + ρ W = S C_{k-1,k}.

    With S = I this is C_{k-1,k} (C_kk + ρ I)^{-1}. With ρ = 0, S cancels out.
    If C_kk is singular, W is the solution of least norm.
    """
    s = spectrum.metric_values[:, None]
    e = spectrum.values
    rotated = torch.where(e > 0, s * spectrum.cross / (s * e + rho), 0.0)
    return spectrum.metric_vectors @ rotated @ spectrum.vectors.T


def reduced_rank(spectrum: Spectrum, rank: int, rho: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return L [D_{k-1}, r] and R [r, D_k] such that W = L R is the best map of rank r.

    The penalty here is ρ tr(S W Wᵀ). Error and penalty then form one norm, and W is the full
    solution truncated in the basis S^{1/2} · C_kk^{1/2}.
    Raises: ShapeError: the rank is below 1 or above the smaller dim.
    Source: Izenman, "Reduced-rank regression for the multivariate linear model", 1975.
    """
    most = min(spectrum.cross.shape)
    if not 1 <= rank <= most:
        raise ShapeError(f"The rank is {rank}; with these dims it must be 1 to {most}.")
    root = spectrum.metric_values.sqrt()[:, None]
    inverse = spectrum.inverse(rho)
    weighted = root * spectrum.cross
    left = torch.linalg.svd(weighted * inverse.sqrt(), full_matrices=False)[0][:, :rank]
    return (
        spectrum.metric_vectors @ (left / root),
        left.T @ (weighted * inverse) @ spectrum.vectors.T,
    )


def affine(moments: SecondMoments, weight: Tensor) -> Affine:
    """Return W and its optimal offset, b = m_{k-1} − W m_k. This is the best affine map if W was
    solved from centred moments."""
    return weight, moments.mean_old - weight @ moments.mean_new


def procrustes(
    moments: SecondMoments,
    metric: Tensor | None = None,
    *,
    scaled: bool = False,
    rounds: int = 100,
    tolerance: float = 1e-6,
) -> tuple[Tensor, float]:
    """Return Q [D_{k-1}, D_k], with orthonormal rows or columns, and c such that c Q is the best W.

    If ‖Q z‖ does not depend on Q (D_k ≤ D_{k-1}, S = I), Q is the polar factor of C_{k-1,k}.
    Otherwise no closed form is known. The iteration starts from that factor, or from the one of
    S C_{k-1,k} if its error is lower. Each round solves a Procrustes problem whose loss bounds the
    true loss from above with equality at the last Q, so the loss never increases. If D_k ≤ D_{k-1}
    and an exact Q exists, the start is exact.

    Args:
        scaled: fit c; otherwise it is 1.
        rounds: maximum number of rounds.
        tolerance: stop when a round gains less than this share of E‖z_{k-1}‖².
    Source: Schönemann 1966; the rounds are Kiers's majorisation, 1990 (Green and Gower's is the
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

    q = polar(cross)
    if metric is not None:
        q = min(q, polar(pull), key=error_of)
    scale = best_scale(q)
    if metric is None and moments.new_dim <= moments.old_dim:
        return q, scale
    curvature = float(torch.linalg.matrix_norm(new, 2))
    if metric is not None:
        curvature *= float(torch.linalg.matrix_norm(metric.double(), 2))
    error = moments.error(scale * q, metric=metric)
    for _ in range(rounds):
        next_q = polar(pull + scale * (curvature * q - weigh(q)))
        next_scale = best_scale(next_q)
        next_error = moments.error(next_scale * next_q, metric=metric)
        if next_error >= error:
            break
        gain, q, scale, error = error - next_error, next_q, next_scale, next_error
        if gain < tolerance * moments.power:
            break
    return q, scale


def polar(matrix: Tensor) -> Tensor:
    """Return the orthonormal matrix nearest to a matrix [m, n]: U Vᵀ of its SVD. Directions that
    the matrix does not determine are completed to an orthonormal set."""
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
    """Return the ρ of `RIDGES` whose fit has the lowest error on held-out pairs.

    If errors differ only by rounding, return the smallest ρ. Only moments are needed, no pairs.

    Args:
        fit: maps ρ to a fitted map.
        unit: unit of the relative `RIDGES`.
        metric: S for the error at all past versions; None for the error at the last one.
        tolerance: if above 0, return the largest ρ, i.e. the smallest map, whose error exceeds the
            lowest one by at most this share.
    """
    errors = {rho * unit: held.error(*fit(rho * unit), metric) for rho in RIDGES}
    zero_map = torch.zeros(held.old_dim, held.new_dim, dtype=torch.float64)
    lowest = min(errors.values()) + 1e-12 * held.error(zero_map, None, metric)
    if tolerance:
        return max(rho for rho, error in errors.items() if error <= (1 + tolerance) * lowest)
    return next(rho for rho, error in errors.items() if error <= lowest)


def mapped_rows(rows: Tensor, weight: Tensor, offset: Tensor | None) -> Tensor:
    """Return W x + b for rows x [N, D_k], [N, D_{k-1}], in their type."""
    mapped = rows @ weight.to(rows).T
    return mapped if offset is None else mapped + offset.to(mapped)


@dataclass(frozen=True)
class ClosedForm:
    """A fitted transform."""

    transform: Transform  # float32, ready to publish; a scaled orthogonal map has kind "linear"
    ridge: float  # ρ; 0 if none was used
    # The map in float64, W [D_{k-1}, D_k] and b [D_{k-1}].
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
        held: moments of separate pairs that choose ρ; the final fit uses them too. None uses `rho`.
        metric: S_{k-1} of `history_metric` for the multi-step loss; None for the single-step one.
        rank: rank of a "low_rank" map.
        scaled: fit a scale factor to an "orthogonal" map.
        rho: ρ if `held` is None, in the unit of C_kk; not used by "orthogonal".
        tolerance: with `held`, accept this relative increase of the error for a smaller map.
    Raises: ShapeError: the kind has no closed form, or the rank exceeds the dims.
    """
    if kind not in KINDS:
        raise ShapeError(f"The transform {kind!r} has no closed form; {', '.join(KINDS)} have one.")
    whole = moments if held is None else moments.plus(held)
    if kind == "orthogonal":
        q, scale = procrustes(whole, metric, scaled=scaled)
        weight = scale * q
        orthogonal = LinearTransform if scaled else OrthogonalTransform
        return ClosedForm(orthogonal.from_matrix(weight.float()), 0.0, weight, None)
    centred = kind == "affine"

    def solve(fitted: SecondMoments, spectrum: Spectrum, rho: float) -> Affine:
        if kind == "low_rank":
            left, right = reduced_rank(spectrum, rank, rho)
            return left @ right, None
        weight = ridge(spectrum, rho)
        return affine(fitted, weight) if centred else (weight, None)

    if held is not None:
        trial = Spectrum.of(moments, metric, centred=centred)
        rho = choose_ridge(
            lambda r: solve(moments, trial, r), trial.unit, held, metric, tolerance=tolerance
        )
    spectrum = Spectrum.of(whole, metric, centred=centred)
    weight, offset = solve(whole, spectrum, rho)
    if kind == "low_rank":
        factors = reduced_rank(spectrum, rank, rho)
        transform: Transform = LowRankTransform.from_factors(*(f.float() for f in factors))
    elif offset is not None:
        transform = AffineTransform.from_matrix(weight.float(), offset.float())
    else:
        transform = LinearTransform.from_matrix(weight.float())
    return ClosedForm(transform, rho, weight, offset)


def pairs_needed(kind: str, old_dim: int, new_dim: int, rank: int = 32) -> int:
    """Return the recommended number of pairs: three per free parameter of an old coordinate."""
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
    """Return the moments of the pairs to fit, and of every tenth pair, which chooses the ridge.

    Args:
        new: z_k [N, D_k]; old: z_{k-1} [N, D_{k-1}], of the same objects.
        together: processes that all call this with the same pairs. Each computes the moments of
            its share, and all receive the sums.
    """
    share = together.share(len(new))
    is_held = (torch.arange(len(new)) % FOR_RIDGE == 0)[share]
    old, new = old[share], new[share]
    fitted, held = (SecondMoments(old.shape[1], new.shape[1]) for _ in range(2))
    fitted.add(old[~is_held], new[~is_held])
    held.add(old[is_held], new[is_held])
    return fitted.summed(together), held.summed(together)
