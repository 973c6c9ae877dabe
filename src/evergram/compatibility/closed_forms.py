"""Second moments of pairs (z_{k-1}, z_k), and the closed forms of backward transforms from them.

All transforms minimise E[δᵀ S δ] + ρ‖W‖² for δ = W z_k − z_{k-1}, within their kind. S = I is the
single-step loss; S_{k-1} of `history_metric` is the multi-step one, times k. The moments of other
pairs choose the ridge.
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

# Columns multiplied at once; blocks below the diagonal are never computed.
PANEL = 256
# A spread below this share of the mean square is rounding.
ROUNDING = 1e-10
# Lengths whose squares float32 holds, as searches need them; a shorter vector is a zero.
SHORTEST, LONGEST = 1e-15, 1e15
# The share of one side's vectors that may be zeros, as failed calls of an encoder leave them.
MOST_ZEROS = 0.05


class SecondMoments:
    """Counts, sums and second moments of pairs of vectors, from one pass, in float64.

    With x = (1, z_k, z_{k-1}) they are one matrix, Σ x xᵀ. It is additive: shards are merged by
    adding.

    C_{k-1,k} is the H of docs/method.md, "Priors", with the old vectors as prior factors:
    `evergram.gramian.estimator.Moment` holds the same pair of matrices, for embeddings that move
    while they are estimated.

    Args:
        old_dim, new_dim: D_{k-1} and D_k.
    Source: docs/method.md, "Closed forms".
    """

    def __init__(self, old_dim: int, new_dim: int) -> None:
        self.old_dim = old_dim
        self.new_dim = new_dim
        size = 1 + new_dim + old_dim
        # Valid on and above the diagonal of panels only. `_excess` is the rounding error of `_sum`;
        # without it the small spread of a long file would be lost beside its large means.
        self._sum = torch.zeros(size, size, dtype=torch.float64)
        self._excess = torch.zeros(size, size, dtype=torch.float64)

    def add(self, old: Tensor, new: Tensor) -> None:
        """Fold in a block of pairs, old [b, D_{k-1}] and new [b, D_k].

        Raises: ShapeError: they do not fit each other or the dims.
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
            part = rows[:, panel].T @ rows[:, start:]
            _compensated(self._sum[panel, start:], self._excess[panel, start:], part)

    def merge(self, other: SecondMoments) -> None:
        """Add the pairs of another accumulator. Raises: ShapeError: it has other dims."""
        if (other.old_dim, other.new_dim) != (self.old_dim, self.new_dim):
            raise ShapeError(
                f"Moments of dims {other.old_dim} and {other.new_dim} cannot be merged into those "
                f"of dims {self.old_dim} and {self.new_dim}."
            )
        _compensated(self._sum, self._excess, other._sum - other._excess)

    def plus(self, *others: SecondMoments) -> SecondMoments:
        """Return the moments of these pairs and the others'."""
        total = SecondMoments(self.old_dim, self.new_dim)
        for each in (self, *others):
            total.merge(each)
        return total

    def summed(self, together: Collectives) -> SecondMoments:
        """Return the moments of the pairs of all processes, of which each has added some."""
        if together.size == 1:
            return self
        total = SecondMoments(self.old_dim, self.new_dim)
        total._sum = together.sum(self._sum - self._excess, "moments")
        return total

    @property
    def count(self) -> int:
        """The number of pairs."""
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
            centred: take them about the means.
        Raises: DataError: there are no pairs.
        """
        mean = self._mean()
        both = self._symmetric() / self._sum[0, 0]
        if centred:
            both = both - mean[:, None] * mean
        new, old = slice(1, 1 + self.new_dim), slice(1 + self.new_dim, None)
        return both[new, new], both[old, new], both[old, old]

    def sigma(self, weight: Tensor, offset: Tensor | None = None) -> Tensor:
        """Return E[δ δᵀ], float64 [D_{k-1}, D_{k-1}], of δ = W z_k + b − z_{k-1}.

        Args:
            weight: W [D_{k-1}, D_k].
            offset: b [D_{k-1}].
        """
        w = self._fitting(weight)
        new, cross, old = self.second(centred=True)
        both = w @ cross.T
        shift = self._shift(w, offset)
        return w @ new @ w.T - both - both.T + old + shift[:, None] * shift

    def error(
        self, weight: Tensor, offset: Tensor | None = None, metric: Tensor | None = None
    ) -> float:
        """Return E[δᵀ S δ] of δ as in `sigma`; with S = I it is the mean of ‖δ‖².

        Args:
            weight, offset: as of `sigma`.
            metric: S [D_{k-1}, D_{k-1}]; None is I.
        """
        if metric is not None:
            return max(float((self.sigma(weight, offset) * metric.double()).sum()), 0.0)
        # The trace of sigma takes one product of matrices instead of three.
        w = self._fitting(weight)
        new, cross, old = self.second(centred=True)
        shift = self._shift(w, offset)
        squared = ((w @ new) * w).sum() - 2 * (w * cross).sum() + old.trace() + shift @ shift
        # In this order NaN stays NaN.
        return max(float(squared), 0.0)

    def _fitting(self, weight: Tensor) -> Tensor:
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
        """E‖z_{k-1}‖², the divisor of relative errors."""
        return float(self.second()[2].trace())

    def _symmetric(self) -> Tensor:
        upper = self._sum.triu()
        return upper + upper.triu(1).T

    def _mean(self) -> Tensor:
        if self.count < 1:
            raise DataError("There are no pairs to take a mean of; add some first.")
        return self._sum[0] / self._sum[0, 0]


def _compensated(total: Tensor, excess: Tensor, part: Tensor) -> None:
    """Add `part` to `total` in place; `excess` carries the rounding error. Source: Kahan, 1965."""
    part = part - excess
    after = total + part
    excess.copy_((after - total) - part)
    total.copy_(after)


@dataclass
class LengthCount:
    """Counts vectors without a length, over any number of blocks."""

    rows: int = 0
    zeros: int = 0

    def add(self, vectors: Tensor) -> int | None:
        """Count vectors [n, D]. Returns: the first row that is longer than `LONGEST` or not
        finite, if one is."""
        lengths = torch.linalg.vector_norm(vectors.detach(), dim=1, dtype=torch.float64)
        self.rows += len(lengths)
        self.zeros += int((lengths < SHORTEST).sum())
        long = (~(lengths <= LONGEST)).nonzero()
        return int(long[0]) if len(long) else None


def vectors_problem(
    rows: int, zeros: int, second: Tensor, spread: Tensor, most_zeros: float = MOST_ZEROS
) -> str | None:
    """Return why vectors of one side cannot be published or aligned, as the end of a sentence; None
    if they can.

    Args:
        zeros: how many of the rows are zeros; `most_zeros` is the share that may be.
        second, spread: E[z zᵀ] [D, D], of all rows or of a sample, and the same of z − E[z].
    """
    if zeros > most_zeros * rows:
        return f"{zeros} of {rows} are zero, and {most_zeros:.0%} may be"
    length = float(second.trace()) ** 0.5
    if not SHORTEST <= length <= LONGEST:
        return (
            f"their length is {length:.3g} (root mean square), and {SHORTEST:g} to {LONGEST:g} is "
            "allowed"
        )
    if rows > 1 and float(spread.trace()) <= ROUNDING * float(second.trace()):
        return "all of them are the same"
    # One eigenvalue is the sum of all: (Σλ)² − Σλ² is twice it times the others. Two vectors
    # are always on a line, and so are numbers.
    trace = float(spread.trace())
    others = trace**2 - float(spread.square().sum())
    if rows > 2 and len(spread) > 1 and others <= 2 * ROUNDING * trace**2:
        return "all of them lie on one line"
    return None


def degenerate_side(
    moments: SecondMoments, zeros: tuple[int, int], most_zeros: float = MOST_ZEROS
) -> tuple[Literal["old", "new"], str] | None:
    """Return the side whose vectors cannot be aligned, and the reason; None if both can.

    Args:
        moments: of all pairs.
        zeros: how many of the old and of the new vectors are zero.
    Raises: DataError: there are no pairs.
    """
    square, spread = moments.second(), moments.second(centred=True)
    sides: tuple[tuple[Literal["old", "new"], int, int], ...] = (
        ("old", 2, zeros[0]),
        ("new", 0, zeros[1]),
    )
    for side, place, zero in sides:
        problem = vectors_problem(
            *(moments.count, zero, square[place], spread[place]), most_zeros=most_zeros
        )
        if problem is not None:
            return side, problem
    return None


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
