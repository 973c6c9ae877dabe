"""The penalty against the double sum over all pairs; its preconditioner; shares of entities."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.data.sampling import EntitySampler, Pool, measure
from evergram.errors import ShapeError
from evergram.gramian.estimator import EntityBatch, Moment, batch_moment
from evergram.gramian.penalty import (
    BatchSide,
    contributions,
    penalty_of_batch,
    preconditioner,
    quadratic_penalty,
)


def shares(n: int, draw: torch.Generator) -> Tensor:
    share = torch.rand(n, dtype=torch.float64, generator=draw) + 0.01
    return share / share.sum()


def moment(embeddings: Tensor, share: Tensor, factors: Tensor, *, pairs: bool = False) -> Moment:
    """Of everybody, entity by entity; `pairs` keeps it as rows."""
    right = torch.cat([embeddings, factors], dim=1).detach()
    left = (embeddings * share[:, None]).detach()
    if pairs:
        return Moment(None, left, right)
    total = torch.zeros(left.shape[1], right.shape[1], dtype=left.dtype)
    for one, other in zip(left, right, strict=True):
        total += torch.outer(one, other)
    return Moment(total)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 7),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 10**6),
)
def test_its_gradient_is_that_of_the_double_sum(
    a: int, b: int, dim: int, width: int, pairs: bool, ridge: float, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=draw)

    query, candidate = normal(a, dim).requires_grad_(), normal(b, dim).requires_grad_()
    of_query, of_candidate = normal(a, width), normal(b, width)
    p, q = shares(a, draw), shares(b, draw)
    naive = torch.zeros((), dtype=torch.float64)
    constant = 0.0
    for i in range(a):
        for j in range(b):
            prior = torch.dot(of_query[i], of_candidate[j])
            naive = naive + p[i] * q[j] * (torch.dot(query[i], candidate[j]) - prior) ** 2
            constant += float(p[i] * q[j] * prior**2)
    norms = torch.zeros((), dtype=torch.float64)
    for shares_of, rows in ((p, query), (q, candidate)):
        for share, row in zip(shares_of, rows, strict=True):
            norms = norms + share * torch.dot(row, row)
    expected = torch.autograd.grad(naive + ridge * norms, [query, candidate])
    # The batch is everybody, once: r = 1/a, so that the weights are p·a and q·b.
    estimate = quadratic_penalty(
        BatchSide(query, p * a, moment(query, p, of_query, pairs=pairs), of_query),
        BatchSide(candidate, q * b, moment(candidate, q, of_candidate, pairs=pairs), of_candidate),
        ridge,
    )
    gradients = torch.autograd.grad(3 * estimate, [query, candidate])
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, 3 * theirs, rtol=1e-10, atol=1e-10)
    # Its value is 2(g − c), and the norms.
    value = 0.5 * (estimate - ridge * norms) + constant
    torch.testing.assert_close(value, naive, rtol=1e-10, atol=1e-10)


def test_further_columns_of_the_moment_are_not_the_prior() -> None:
    """A mean, kept beside the prior, must not leak into the penalty."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 3, generator=draw)
    factors = torch.randn(5, 2, generator=draw)
    share = torch.full((5,), 0.2)
    ones = torch.ones(5)
    with_mean = torch.cat([factors, torch.ones(5, 1)], dim=1)
    sides = [
        BatchSide(rows, ones, moment(rows, share, f, pairs=pairs), factors)
        for f in (factors, with_mean)
        for pairs in (False, True)
    ]
    values = [quadratic_penalty(side, side) for side in sides]
    for value in values[1:]:
        torch.testing.assert_close(value, values[0])


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 3), st.integers(0, 10**6))
def test_the_batchs_moments_are_those_that_estimators_make(
    n: int, dim: int, width: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    sides, expected = [], []
    for _ in range(2):
        rows = torch.randn(n, dim, dtype=torch.float64, generator=draw).requires_grad_()
        factors = torch.randn(n, width, dtype=torch.float64, generator=draw)
        weights = torch.rand(n, dtype=torch.float64, generator=draw)
        other = moment(rows, weights, factors)
        sides.append(BatchSide(rows, weights, other, factors))
        batch = EntityBatch(torch.arange(n), weights, rows.detach(), factors)
        expected.append(batch_moment(batch))
    made = penalty_of_batch(sides[0], sides[1], ridge=0.3, strength=2.0)
    for own, right in zip((made.query, made.candidate), expected, strict=True):
        assert own is not None
        assert not own.requires_grad
        torch.testing.assert_close(own, right, rtol=1e-12, atol=1e-12)
    plain = quadratic_penalty(sides[0], sides[1], ridge=0.3)
    torch.testing.assert_close(made.value, 2 * plain)


def test_no_gradient_flows_into_the_gramians() -> None:
    gramian = torch.eye(2, requires_grad=True)
    query = torch.ones(3, 2, requires_grad=True)
    ones = torch.ones(3)
    side = BatchSide(query, ones, Moment(gramian))
    quadratic_penalty(side, side).backward()  # type: ignore[no-untyped-call]
    assert gramian.grad is None


def test_dims_that_differ_are_refused() -> None:
    pairs = Moment(None, torch.ones(5, 4), torch.ones(5, 4))
    sides = [
        BatchSide(torch.ones(3, dim), torch.ones(3), of)
        for dim, of in ((2, Moment(torch.eye(2))), (3, pairs))
    ]
    with pytest.raises(ShapeError, match="Queries have dim 2, candidates 3, the Gramians 2 and 4"):
        quadratic_penalty(sides[0], sides[1])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_the_gradients_error_is_that_of_the_gramian_weighted_by_the_other(
    a: int, b: int, dim: int, seed: int
) -> None:
    """[G2] E.1: ‖∇_u g − ∇_u ĝ‖² = 4 ⟨E, E Σ p² u⊗u⟩ with E = G_v − Ĝ_v."""
    draw = torch.Generator().manual_seed(seed)
    query = torch.randn(a, dim, dtype=torch.float64, generator=draw).requires_grad_()
    candidate = torch.randn(b, dim, dtype=torch.float64, generator=draw)
    p, q = shares(a, draw), shares(b, draw)
    none_a, none_b = torch.zeros(a, 0), torch.zeros(b, 0)
    exact = moment(candidate, q, none_b)
    rows = EntityBatch(torch.arange(b), torch.ones(b, dtype=torch.float64), candidate, none_b)
    other = Moment(batch_moment(rows))
    own = moment(query, p, none_a)

    def gradient(of_candidates: Moment) -> Tensor:
        unweighted = BatchSide(candidate[:1].expand(a, dim), torch.zeros(a), of_candidates)
        penalty = quadratic_penalty(BatchSide(query, p * a, own), unweighted)
        return torch.autograd.grad(penalty, query)[0]

    error = (gradient(exact) - gradient(other)).square().sum()
    difference = exact.gramian - other.gramian
    weighted = (query * p[:, None].square()).T @ query
    expected = 4 * (difference * (difference @ weighted)).sum()
    torch.testing.assert_close(error, expected.detach(), rtol=1e-9, atol=1e-12)


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
    # Without any weight all count the same.
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
    kind = "adaptive" if adaptive else "linear"
    sampler = EntitySampler(
        counts, share[:, None], kind=kind, pool_size=1024, batch_size=batch, seed=0
    )
    for drawn in sampler.epoch(0, 4000):
        if isinstance(drawn, Pool):
            scores = contributions(v[drawn.ids], drawn.weights.double(), [Moment(other)], [10.0])
            drawn = drawn.resample(scores)
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
