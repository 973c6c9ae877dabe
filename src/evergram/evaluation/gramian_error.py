"""Measure an estimated Gramian's error, and scores of observed and random pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.gramian.estimator import Population, beside

OTHER = {"query": "candidate", "candidate": "query"}


@dataclass(frozen=True)
class Truth:
    """The exact moments of one side, float64, with z_a = (u_a, f_a).

    Args:
        moment: M = Σ p_a u_a ⊗ z_a, [D, D + K].
        spread: Σ p_a² z_a ⊗ z_a, [D + K, D + K], by which errors of the other side's moment weigh.
    """

    moment: Tensor
    spread: Tensor

    @classmethod
    def of(cls, population: Population) -> Truth:
        """Return the exact moments, from one pass over every entity."""
        moment, spread = torch.zeros(()), torch.zeros(())
        with torch.no_grad():
            for embeddings, share, factors in population():
                right = beside(embeddings.double(), factors.double())
                weighted = right * share.to(right)[:, None]
                moment = moment + weighted[:, : embeddings.shape[1]].T @ right
                spread = spread + weighted.T @ weighted
        if not moment.dim():
            raise ValueError("The population is empty; a Gramian needs at least one entity.")
        return cls(moment, spread)


@dataclass(frozen=True)
class Histograms:
    """Scores of observed and of random pairs, as densities over the same bins.

    Args:
        edges: [bins + 1].
        observed, random: [bins], each with area 1.
        means: of both.
        separation: the chance that an observed pair outscores a random one (ties count half).
    """

    edges: Tensor
    observed: Tensor
    random: Tensor
    means: tuple[float, float]
    separation: float


def score_histograms(
    query: Tensor,
    candidate: Tensor,
    pairs: tuple[Tensor, Tensor],
    *,
    samples: int = 100_000,
    bins: int = 60,
    seed: int = 0,
) -> Histograms:
    """Return histograms of the scores of `samples` observed pairs and of as many random pairs.

    Args:
        query, candidate: [N, D].
        pairs: int64 [n] rows of each.
    Source: [G2] Fig. 4.
    """
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(pairs[0]), (samples,), generator=draw)
    rows = torch.randint(len(query), (samples,), generator=draw)
    columns = torch.randint(len(candidate), (samples,), generator=draw)

    def scores(a: Tensor, b: Tensor) -> Tensor:
        return (query[a] * candidate[b]).sum(1).double()

    observed, random = scores(pairs[0][chosen], pairs[1][chosen]), scores(rows, columns)
    low, high = float(min(observed.min(), random.min())), float(max(observed.max(), random.max()))
    high = high if high > low else low + 1.0
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
    densities = [torch.histogram(s, edges, density=True).hist for s in (observed, random)]
    order = random.sort().values
    below = torch.searchsorted(order, observed) + torch.searchsorted(order, observed, right=True)
    return Histograms(
        edges,
        densities[0],
        densities[1],
        (float(observed.mean()), float(random.mean())),
        float(below.double().mean()) / (2 * samples),
    )


# Groups of a sample, and Student's t of a two-sided 95 % interval with one less degrees of freedom.
GROUPS, STUDENT = 32, 2.0395
# Groups of an exact moment; all are the same, and an unbiased square without one needs two.
COPIES = 3


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval; both ends are the figure where it is exact."""

    value: float
    low: float
    high: float

    @classmethod
    def mean(cls, parts: Sequence[Interval]) -> Interval:
        """Return the mean of independent figures; the distances to their ends add in quadrature.

        Source: Zou and Donner 2008 (MOVER).
        """
        value = sum(p.value for p in parts) / len(parts)
        below = math.hypot(*(p.value - p.low for p in parts)) / len(parts)
        above = math.hypot(*(p.high - p.value for p in parts)) / len(parts)
        return cls(value, value - below, value + above)

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.value:.4f}"
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


@dataclass(frozen=True)
class SampledTruth:
    """The moments of one side by groups of a sample, each group's without bias, float64.

    Args:
        moments: [J, D, D + K], of each group (1/m) Σ u ⊗ z, z = (u, f), of entities drawn by p.
        spreads: [J, D + K, D + K], (1/m) Σ p z ⊗ z, see `Truth.spread`.
        size: entities drawn; 0 if the moments are exact.
    """

    moments: Tensor
    spreads: Tensor
    size: int

    @classmethod
    def exact(cls, truth: Truth) -> SampledTruth:
        """Return exact moments in the form of a sample."""
        return cls(truth.moment.expand(COPIES, -1, -1), truth.spread.expand(COPIES, -1, -1), 0)

    @classmethod
    def draw(
        cls,
        embed: Callable[[Tensor], tuple[Tensor, Tensor]],
        share: Tensor,
        size: int,
        generator: torch.Generator,
    ) -> SampledTruth:
        """Return the moments of `size` entities, drawn by their share, float64 [N], with
        replacement; `embed` returns the embeddings [m, D] and the factors [m, K] of ids int64
        [m]."""
        each = size // GROUPS
        if each < 2:
            raise ValueError(f"The sample is {size}; it must be at least {2 * GROUPS} entities.")
        bounds = torch.cumsum(share.double().cpu(), 0)
        moments, spreads = [], []
        for _ in range(GROUPS):
            chance = torch.rand(each, generator=generator, dtype=torch.float64) * bounds[-1]
            # Rounding may leave the last bound below the chance.
            ids = torch.searchsorted(bounds, chance, right=True).clamp(max=len(bounds) - 1)
            with torch.no_grad():
                embeddings, factors = embed(ids)
                right = beside(embeddings.double(), factors.double())
                moments.append(right[:, : embeddings.shape[1]].T @ right / each)
                weighted = right * share.to(right)[ids.to(share.device), None].to(right.device)
                spreads.append(weighted.T @ right / each)
        return cls(torch.stack(moments), torch.stack(spreads), GROUPS * each)


def gramian_error_interval(estimate: Tensor, truth: SampledTruth) -> Interval:
    """Return ‖Ĝ − G‖ / ‖G‖ of an estimated moment [D, D + K] with its 95 % interval.

    ‖Ĝ − S‖² of a sample S is too large by the sample's variance. The products of *different* groups
    have no such bias: the mean of ⟨Ĝ − S_g, Ĝ − S_h⟩ over g ≠ h estimates ‖Ĝ − G‖², and that of
    ⟨S_g, S_h⟩ ‖G‖². The interval is the jackknife's, over groups, of the ratio of the two.

    Source: [G2] Fig. 2; docs/method.md, "Errors against a sample".
    """
    dim = truth.moments.shape[1]
    exact = truth.moments[:, :, :dim].flatten(1)
    wrong = estimate[:, :dim].to(exact).flatten() - exact
    numbers = [_products(rows @ rows.T) for rows in (wrong, exact)]
    without = [_ratio(*(n[1] for n in numbers))] if truth.size else []
    return _root(_ratio(*(n[0] for n in numbers)), without)


def gradient_error_interval(
    estimates: Mapping[str, Tensor], truths: Mapping[str, SampledTruth], prior: int = 0
) -> Interval:
    """Return ‖∇ĝ − ∇g‖ / ‖∇g‖ over the embeddings of both sides, with its 95 % interval.

    ∇ĝ is that of all entities at once, so that it has the error of the estimates and no noise of a
    batch. Products are of different groups, as in `gramian_error_interval`.

    Args:
        estimates, truths: by side; an estimated moment of each.
        prior: K′, the number of columns of the prior after the first D of a moment.
    Source: [G2] Fig. 6, App. E.1.
    """
    # Of either side: the forms ‖·‖² with all groups, and without each group of the side.
    whole = torch.zeros(2, dtype=torch.float64)
    without = {side: torch.zeros(2, len(t.moments)).double() for side, t in truths.items()}
    for side, other in OTHER.items():
        exact = truths[other].moments
        width = exact.shape[1] + prior
        # u's gradient is 2 p (G u − H q): the same form of z = (u, q), with the sign of H changed.
        sign = torch.ones(width).to(exact)
        sign[exact.shape[1] :] = -1
        slope = exact[:, :, :width] * sign
        error = estimates[other].to(exact)[:, :width] * sign - slope
        spreads = truths[side].spreads[:, :width, :width]
        mean = spreads.mean(0)
        for k, rows in enumerate((error, slope)):
            square, squares = _squares(rows)
            each = (spreads * square).sum((1, 2))
            count = len(each)
            whole[k] += each.mean().cpu()
            without[side][k] += ((each.sum() - each) / (count - 1)).cpu()
            without[other][k] += (squares * mean).sum((1, 2)).cpu()
    ratios = [_ratio(*without[side]) for side, truth in truths.items() if truth.size]
    return _root(_ratio(whole[0], whole[1]), ratios)


def _products(inner: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of inner products [J, J] of different groups, and that without each, [J]."""
    count = len(inner)
    diagonal = inner.diagonal()
    total = inner.sum() - diagonal.sum()
    own = 2 * (inner.sum(1) - diagonal)
    return total / (count * (count - 1)), (total - own) / ((count - 1) * (count - 2))


def _squares(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of X_gᵀ X_h over different groups of [J, D, W], symmetric [W, W], and that
    without each group, [J, W, W]."""
    count = len(rows)
    own = rows.transpose(1, 2) @ rows
    total, squares = rows.sum(0), own.sum(0)
    rest = total - rows
    whole = (total.T @ total - squares) / (count * (count - 1))
    without = (rest.transpose(1, 2) @ rest - squares + own) / ((count - 1) * (count - 2))
    return whole, without


def _ratio(wrong: Tensor, total: Tensor) -> Tensor:
    return wrong / total.clamp(min=1e-300)


def _root(square: Tensor, without: Sequence[Tensor]) -> Interval:
    """Return the root of a squared error, from its values without each group of a sampled side."""
    variance = sum(float((r - r.mean()).square().sum() * (len(r) - 1) / len(r)) for r in without)
    value, half = float(square), STUDENT * math.sqrt(variance)
    return Interval(*(math.sqrt(max(x, 0.0)) for x in (value, value - half, value + half)))
