"""The error of an estimated Gramian, and the scores of observed and random pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.gramian.estimator import Population, beside

OTHER = {"query": "candidate", "candidate": "query"}


@dataclass(frozen=True)
class Truth:
    """The exact moments of one side, float64, with z_a = (u_a, f_a)."""

    moment: Tensor  # M = Σ p_a u_a ⊗ z_a, [D, D + K]
    # Σ p_a² z_a ⊗ z_a, [D + K, D + K], the metric of errors in the other side's moment.
    spread: Tensor

    @classmethod
    def of(cls, population: Population) -> Truth:
        """Compute the exact moments in one pass over all entities."""
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
    """Densities of the scores of observed and of random pairs over the same bins."""

    edges: Tensor  # [bins + 1]
    # [bins], each with area 1.
    observed: Tensor
    random: Tensor
    means: tuple[float, float]  # mean score of observed and of random pairs
    separation: float  # probability that an observed pair outscores a random one (ties count half)


def score_histograms(
    query: Tensor,
    candidate: Tensor,
    pairs: tuple[Tensor, Tensor],
    *,
    samples: int = 100_000,
    bins: int = 60,
    seed: int = 0,
) -> Histograms:
    """Return histograms of the scores of `samples` observed and `samples` random pairs.

    Args:
        query, candidate: [N, D].
        pairs: the observed pairs, int64 [n] rows of each side.
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


def gramian_error(estimate: Tensor, truth: Truth) -> float:
    """Return ‖Ĝ − G‖ / ‖G‖ for an estimated moment [D, D + K]. Source: [G2] Fig. 2."""
    dim = len(truth.moment)
    exact = truth.moment[:, :dim]
    return float((estimate[:, :dim].to(exact) - exact).norm() / exact.norm().clamp(min=1e-150))


def gradient_error(estimates: Mapping[str, Tensor], truths: Mapping[str, Truth]) -> float:
    """Return ‖∇ĝ − ∇g‖ / ‖∇g‖ over the embeddings of both sides.

    ∇ĝ is the gradient over all entities, so it contains the error of the estimates but no batch
    noise.

    Source: [G2] Fig. 6, App. E.1.
    """
    squared_error = total = 0.0
    for side, other in OTHER.items():
        exact = truths[other].moment
        # The gradient of u is 2 p (G u − H q), a linear map of z = (u, q) if H changes its sign.
        sign = torch.ones(exact.shape[1]).to(exact)
        sign[len(exact) :] = -1
        gradient = exact * sign
        error = estimates[other].to(exact) * sign - gradient
        spread = truths[side].spread
        squared_error += float(((error @ spread) * error).sum())
        total += float(((gradient @ spread) * gradient).sum())
    return math.sqrt(max(squared_error, 0.0) / max(total, 1e-300))
