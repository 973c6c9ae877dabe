"""Errors of Gramians and gradients, exact and against samples; histograms against counting."""

from __future__ import annotations

import itertools
from statistics import fmean

import pytest
import torch
from torch import Tensor

from evergram.evaluation.gramian_error import (
    GROUPS,
    OTHER,
    Interval,
    SampledTruth,
    Truth,
    gradient_error_interval,
    gramian_error_interval,
    score_histograms,
)


def normal(*shape: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


@pytest.mark.parametrize("width", [0, 2])
def test_the_gradient_error_is_that_of_all_embeddings(width: int) -> None:
    a, b, dim = 7, 5, 3
    vectors = {"query": normal(a, dim, seed=0), "candidate": normal(b, dim, seed=1)}
    factors = {"query": normal(a, width, seed=2), "candidate": normal(b, width, seed=3)}
    share = {s: torch.rand(len(v), dtype=torch.float64) for s, v in vectors.items()}
    share = {s: p / p.sum() for s, p in share.items()}
    # A further column, such as a mean's, must not count.
    wide = {s: torch.cat([f, torch.ones(len(f), 1)], dim=1) for s, f in factors.items()}
    truths = {
        s: Truth.of(lambda s=s: iter([(vectors[s], share[s], wide[s])]))  # type: ignore[misc]
        for s in vectors
    }
    estimates = {
        s: t.moment + 0.1 * normal(*t.moment.shape, seed=4 + i)
        for i, (s, t) in enumerate(truths.items())
    }

    def gradients(moments: dict[str, Tensor]) -> Tensor:
        # Entity by entity, of Σ p (uᵀ G u − 2 uᵀ H q) with G, H of the other side.
        rows = []
        for side, other in (("query", "candidate"), ("candidate", "query")):
            m = moments[other]
            for u, p, q in zip(vectors[side], share[side], factors[side], strict=True):
                # The form that an estimate gives need not be symmetric: ĝ pushes u by G u.
                rows.append(2 * p * (m[:, :dim] @ u - m[:, dim : dim + width] @ q))
        return torch.cat(rows)

    exact = gradients({s: t.moment for s, t in truths.items()})
    expected = (gradients(estimates) - exact).norm() / exact.norm()
    exact_truths = {side: SampledTruth.exact(truth) for side, truth in truths.items()}
    error = gradient_error_interval(estimates, exact_truths, width)
    assert error.low == error.value == error.high == pytest.approx(float(expected))
    leaf = {s: v.clone().requires_grad_() for s, v in vectors.items()}
    scores = leaf["query"] @ leaf["candidate"].T
    prior = factors["query"] @ factors["candidate"].T
    weight = torch.outer(share["query"], share["candidate"])
    naive = torch.autograd.grad((weight * (scores - prior).square()).sum(), list(leaf.values()))
    torch.testing.assert_close(exact, torch.cat([g.flatten() for g in naive]))


def test_histograms_of_observed_and_random_pairs() -> None:
    query = torch.eye(4)
    pairs = (torch.arange(4), torch.arange(4))
    histograms = score_histograms(query, query, pairs, samples=40_000, bins=2)
    # Observed pairs score 1; a random pair does in one of four cases.
    assert histograms.edges.tolist() == [0.0, 0.5, 1.0]
    assert histograms.observed.tolist() == [0.0, 2.0]
    assert histograms.random.tolist() == pytest.approx([1.5, 0.5], abs=0.02)
    assert histograms.means[0] == 1
    # Above three quarters, and level with one.
    assert histograms.separation == pytest.approx(0.875, abs=0.01)


N, DIM, K = {"query": 4000, "candidate": 3000}, 6, 2


def population(side: str) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings with a common direction and lengths that vary, shares, and factors."""
    seed = {"query": 0, "candidate": 10}[side]
    rows = normal(N[side], DIM, seed=seed) * normal(N[side], 1, seed=seed + 1).exp().sqrt() + 0.5
    share = normal(N[side], seed=seed + 2).exp()
    factors = torch.cat([normal(N[side], K, seed=seed + 3), torch.ones(N[side], 1)], dim=1)
    return rows, share / share.sum(), factors


POPULATIONS = {side: population(side) for side in OTHER}
TRUTHS = {side: Truth.of(lambda p=p: [p]) for side, p in POPULATIONS.items()}  # type: ignore[misc]


def drawn(side: str, size: int, seed: int) -> SampledTruth:
    rows, share, factors = POPULATIONS[side]
    generator = torch.Generator().manual_seed(seed)
    return SampledTruth.draw(lambda ids: (rows[ids], factors[ids]), share, size, generator)


def estimates(noise: float) -> dict[str, Tensor]:
    """Moments that are wrong by about this share of their norm."""
    wrong: dict[str, Tensor] = {}
    for i, (side, truth) in enumerate(TRUTHS.items()):
        other = normal(*truth.moment.shape, seed=20 + i)
        wrong[side] = truth.moment + noise * other * truth.moment.norm() / other.norm()
    return wrong


EXACT = {side: SampledTruth.exact(truth) for side, truth in TRUTHS.items()}


def gramian_error(estimate: Tensor, truth: Truth) -> float:
    exact = truth.moment[:, :DIM]
    return float((estimate[:, :DIM] - exact).norm() / exact.norm())


@pytest.mark.parametrize("noise", [0.02, 0.5])
def test_the_interval_covers_the_exact_error(noise: float) -> None:
    """Of 200 samples' 95 % intervals at least nine in ten hold it, whether it is far below the
    sample's own noise (about 0.08) or far above; a wrong standard error or a bias would not."""
    wrong = estimates(noise)
    exact = gramian_error(wrong["query"], TRUTHS["query"])
    exact_slope = gradient_error_interval(wrong, EXACT, K).value
    inside = slope_inside = 0
    for seed in range(200):
        sample = {side: drawn(side, 1600, 1000 * i + seed) for i, side in enumerate(OTHER)}
        interval = gramian_error_interval(wrong["query"], sample["query"])
        inside += interval.low <= exact <= interval.high
        slopes = gradient_error_interval(wrong, sample, K)
        slope_inside += slopes.low <= exact_slope <= slopes.high
    assert inside >= 180
    assert slope_inside >= 180


def test_the_squared_error_has_no_bias_and_that_of_a_plain_sample_has() -> None:
    wrong = estimates(0.3)["query"]
    exact = gramian_error(wrong, TRUTHS["query"]) ** 2
    unbiased, plain = [], []
    for seed in range(200):
        sample = drawn("query", 640, seed)
        interval = gramian_error_interval(wrong, sample)
        unbiased.append(interval.value**2)
        mean = sample.moments.mean(0)
        plain.append(gramian_error(wrong, Truth(mean, sample.spreads.mean(0))) ** 2)
    excess = fmean(plain) - exact
    assert excess > 0.1 * exact
    assert abs(fmean(unbiased) - exact) < 0.2 * excess


def test_the_figures_are_the_sums_over_pairs_of_groups() -> None:
    wrong = estimates(0.3)
    sample = {side: drawn(side, 4 * GROUPS, i) for i, side in enumerate(OTHER)}
    pairs = list(itertools.permutations(range(GROUPS), 2))
    groups = sample["query"].moments[:, :, :DIM]
    gap = wrong["query"][:, :DIM] - groups
    expected = sum(float((gap[g] * gap[h]).sum()) for g, h in pairs)
    expected /= sum(float((groups[g] * groups[h]).sum()) for g, h in pairs)
    value = gramian_error_interval(wrong["query"], sample["query"]).value
    assert value**2 == pytest.approx(expected)

    total = [0.0, 0.0]
    sign = torch.cat([torch.ones(DIM), -torch.ones(K)]).double()
    for side, other in OTHER.items():
        spread = sample[side].spreads[:, : DIM + K, : DIM + K].mean(0)
        slope = sample[other].moments[:, :, : DIM + K] * sign
        error = wrong[other][:, : DIM + K] * sign - slope
        for k, rows in enumerate((error, slope)):
            total[k] += sum(float(((rows[g] @ spread) * rows[h]).sum()) for g, h in pairs)
    value = gradient_error_interval(wrong, sample, K).value
    assert value**2 == pytest.approx(total[0] / total[1])


def test_exact_moments_give_the_exact_errors_without_a_width() -> None:
    wrong = estimates(0.3)
    interval = gramian_error_interval(wrong["query"], EXACT["query"])
    assert interval.value == pytest.approx(gramian_error(wrong["query"], TRUTHS["query"]))
    assert interval.low == interval.value == interval.high
    slope = gradient_error_interval(wrong, EXACT, K)
    assert slope.low == slope.value == slope.high
    # One side exact, the other sampled: the interval is the sampled side's.
    mixed = {**EXACT, "query": drawn("query", 1600, 0)}
    assert 0 < gradient_error_interval(wrong, mixed, K).low < slope.value


def test_entities_are_drawn_by_their_share() -> None:
    rows = torch.eye(3, dtype=torch.float64)
    share = torch.tensor([0.7, 0.0, 0.3])
    counted: list[Tensor] = []

    def embed(ids: Tensor) -> tuple[Tensor, Tensor]:
        counted.append(ids)
        return rows[ids], rows[ids, :0]

    truth = SampledTruth.draw(embed, share, 32_000, torch.Generator().manual_seed(0))
    counts = torch.cat(counted).bincount(minlength=3)
    assert truth.size == len(torch.cat(counted)) == 32_000
    assert counts[1] == 0
    assert float(counts[0]) / 32_000 == pytest.approx(0.7, abs=0.01)
    # Σ p² z z, of which the sample's mean is one of p z z.
    torch.testing.assert_close(
        truth.spreads.mean(0).diagonal(), share.double().square(), atol=0.01, rtol=0
    )


def test_the_mean_of_independent_intervals() -> None:
    mean = Interval.mean([Interval(1.0, 0.7, 1.4), Interval(3.0, 2.6, 3.3)])
    assert (mean.value, mean.low, mean.high) == pytest.approx((2.0, 1.75, 2.25))
    assert str(mean) == "2.0000 (1.7500 to 2.2500)"
    assert str(Interval(0.5, 0.5, 0.5)) == "0.5000"
