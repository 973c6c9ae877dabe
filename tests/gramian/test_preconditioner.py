"""Newton's direction for the penalty, and each entity's share in it, from the Gramian alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evergram.data.pools import PoolSampler
from evergram.data.sampling import EntitySampler, measure
from evergram.gramian.contributions import contributions
from evergram.gramian.estimator import Moment
from evergram.gramian.preconditioner import preconditioner


def gramian(seed: int, dim: int = 5) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(20, dim, dtype=torch.float64, generator=draw)
    return rows.T @ rows / 20


def test_it_makes_the_penalty_equally_steep_everywhere() -> None:
    """With a small ridge one step of the right length minimises (u − u*)ᵀ G (u − u*)."""
    g = gramian(0)
    inverse = preconditioner([Moment(g)], [3.0], 1e-9)
    draw = torch.Generator().manual_seed(1)
    u, best = torch.randn(2, 5, dtype=torch.float64, generator=draw)
    slope = 2 * g @ (u - best)
    mean = g.trace() / 5
    torch.testing.assert_close(u - inverse @ slope / (2 * mean), best)


def test_several_measures_add_up_by_their_strength() -> None:
    one, two = gramian(0), gramian(1)
    inverse = preconditioner([Moment(one), Moment(two)], [1.0, 2.0], 0.1)
    same = preconditioner([Moment(one + 2 * two)], [1.0], 0.1)
    torch.testing.assert_close(inverse, same)
    # A task of its own moments has no λ.
    unweighted = preconditioner([Moment(one)], [0.0], 0.1)
    torch.testing.assert_close(unweighted, preconditioner([Moment(one)], [7.0], 0.1))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_the_length_of_embeddings_does_not_matter(scale: float) -> None:
    inverse = preconditioner([Moment(scale * gramian(0))], [1.0], 0.1)
    torch.testing.assert_close(inverse, preconditioner([Moment(gramian(0))], [1.0], 0.1))


def test_before_there_is_a_gramian_it_is_the_identity() -> None:
    inverse = preconditioner([Moment(torch.zeros(3, 3))], [1.0], 0.1)
    torch.testing.assert_close(inverse, torch.eye(3))


def test_an_estimate_with_a_negative_eigenvalue_still_gives_a_positive_one() -> None:
    values = torch.tensor([-0.5, 0.1, 3.0])
    turn = torch.linalg.qr(torch.arange(9.0).view(3, 3).cos()).Q
    inverse = preconditioner([Moment(turn @ torch.diag(values) @ turn.T)], [1.0], 0.1)
    assert float(torch.linalg.eigvalsh(inverse).min()) > 0
    torch.testing.assert_close(inverse, inverse.T)


def normal_rows(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def test_shares_add_up_to_the_penalty_pair_by_pair() -> None:
    """Σ_r λ_r Σ_ab p_a q_b ⟨u_a, v_b⟩², by loops, for two measures."""
    u, v = normal_rows(4, 3), normal_rows(5, 3, seed=1)
    p, q = normal_rows(4, 2, seed=2).softmax(0), normal_rows(5, 2, seed=3).softmax(0)
    strengths = [2.0, 0.5]
    expected = sum(
        strengths[r] * float(p[a, r] * q[b, r]) * float(u[a] @ v[b]) ** 2
        for r in range(2)
        for a in range(4)
        for b in range(5)
    )
    others = [Moment(torch.einsum("a,ad,ae->de", p[:, r], u, u)) for r in range(2)]
    shares = contributions(v, q, others, strengths)
    assert float(shares.sum()) == pytest.approx(expected)
    one_by_one = [contributions(v[b : b + 1], q[b : b + 1], others, strengths) for b in range(5)]
    torch.testing.assert_close(torch.cat(one_by_one), shares)


def test_a_moment_kept_as_pairs_gives_the_same_shares() -> None:
    left, v = normal_rows(2, 3), normal_rows(5, 3, seed=1)
    weight = torch.ones(5, 1, dtype=torch.float64)
    pairs = Moment(None, left, left)
    dense = Moment(pairs.dense)
    torch.testing.assert_close(
        contributions(v, weight, [pairs], [1.0]), contributions(v, weight, [dense], [1.0])
    )


def test_prior_factors_beside_the_gramian_are_left_aside() -> None:
    u, v = normal_rows(4, 3), normal_rows(5, 3, seed=1)
    weight = torch.ones(5, 1, dtype=torch.float64)
    wide = torch.cat([u.T @ u, normal_rows(3, 2, seed=4)], dim=1)
    plain = contributions(v, weight, [Moment(u.T @ u)], [1.0])
    torch.testing.assert_close(contributions(v, weight, [Moment(wide)], [1.0]), plain)


def test_no_share_is_below_zero_and_none_has_a_gradient() -> None:
    v = normal_rows(5, 3).requires_grad_()
    weight = torch.ones(5, 1, dtype=torch.float64)
    shares = contributions(v, weight, [Moment(-torch.eye(3, dtype=torch.float64))], [1.0])
    assert not shares.requires_grad
    assert bool((shares == 0).all())


def estimates(adaptive: bool, power: float, batch: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    """Return 4000 estimates of G_v [4000, D, D] of a skewed population, G_v and G_u.

    Popularity follows a power law, and lengths follow another one that has nothing to do with it.
    """
    size, dim = 2000, 6
    draw = torch.Generator().manual_seed(1)
    counts = (2000 / torch.arange(1, size + 1)).long() + 1
    lengths = torch.rand(size, generator=draw, dtype=torch.float64).pow(-0.6)[:, None]
    v = normal_rows(size, dim, seed=2) * lengths
    u = normal_rows(500, dim, seed=3) * torch.linspace(3, 0.2, dim, dtype=torch.float64)
    share = measure(counts, power)
    exact, other = torch.einsum("a,ad,ae->de", share, v, v), u.T @ u / len(u)
    made = []
    sampler: EntitySampler
    if adaptive:
        sampler = PoolSampler(counts, share[:, None], pool_size=1024, batch_size=batch, seed=0)
    else:
        sampler = EntitySampler(counts, share[:, None], kind="linear", batch_size=batch, seed=0)
    for drawn in sampler.epoch(0, 4000):
        if isinstance(sampler, PoolSampler):
            scores = contributions(v[drawn.ids], drawn.weights.double(), [Moment(other)], [10.0])
            drawn = drawn.resample(scores)  # type: ignore[attr-defined]
        kept = v[drawn.ids]
        made.append(torch.einsum("a,ad,ae->de", drawn.weights[:, 0].double(), kept, kept) / batch)
    return torch.stack(made), exact, other


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_on_a_skewed_population_it_varies_less_than_linear_sampling(power: float) -> None:
    """Both without bias within five standard errors; the penalty's value and the Gramian, as
    queries read it, vary less than half as much."""
    spread: dict[bool, list[float]] = {}
    for adaptive in (False, True):
        made, exact, other = estimates(adaptive, power)
        error = made.mean(0) - exact
        assert bool((error.abs() < 5 * made.std(0) / len(made) ** 0.5).all())
        value = torch.einsum("nde,de->n", made, other)
        off = made - exact
        read = torch.einsum("nde,ef,nfg,gd->n", off, other, off, other)
        spread[adaptive] = [float(value.var()), float(read.mean())]
    assert all(a < b / 2 for a, b in zip(spread[True], spread[False], strict=True)), spread
