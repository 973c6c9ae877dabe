"""The objective has the same minimum as implicit ALS, whose closed form is the oracle."""

from __future__ import annotations

import torch

from evergram.data.sampling import Batch
from evergram.gramian.estimator import exact_gramian
from evergram.tasks.pointwise import Pointwise


def test_the_minimum_is_that_of_implicit_als() -> None:
    draw = torch.Generator().manual_seed(0)
    a, b, dim, alpha = 8, 6, 2, 0.3
    observed = torch.rand(a, b, generator=draw) < 0.4
    query = torch.randn(a, dim, dtype=torch.float64, generator=draw)
    candidate = torch.randn(b, dim, dtype=torch.float64, generator=draw)

    def solve(other: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        # Each row minimises Σ_obs (1 − s)² + α Σ_all s².
        rows = []
        for row in mask:
            near = other[row]
            rows.append(torch.linalg.solve(near.T @ near + alpha * other.T @ other, near.sum(0)))
        return torch.stack(rows)

    for _ in range(3000):
        query = solve(candidate, observed)
        candidate = solve(query, observed.T)
    query = solve(candidate, observed)

    pairs = torch.nonzero(observed)
    n = len(pairs)
    rows, columns = pairs[:, 0], pairs[:, 1]
    leaf_query, leaf_candidate = query.requires_grad_(), candidate.requires_grad_()
    # The conversion of method.md: λ = ½ α₀ |A||B| / n, with the uniform measure.
    task = Pointwise(penalty=0.5 * alpha * a * b / n)
    count_query, count_candidate = observed.sum(1), observed.sum(0)
    batch = Batch(
        rows,
        columns,
        torch.ones(n, dtype=torch.float64),
        (n / a / count_query.double())[rows],
        (n / b / count_candidate.double())[columns],
    )
    uniform_query = torch.full((a,), 1 / a, dtype=torch.float64)
    uniform_candidate = torch.full((b,), 1 / b, dtype=torch.float64)
    loss = task(
        leaf_query[rows],
        leaf_candidate[columns],
        batch,
        exact_gramian(lambda: [(leaf_query, uniform_query)]),
        exact_gramian(lambda: [(leaf_candidate, uniform_candidate)]),
    )
    for gradient in torch.autograd.grad(loss.total, [leaf_query, leaf_candidate]):
        assert float(gradient.abs().max()) < 1e-6
    scores = query @ candidate.T
    objective = (1 - scores[observed]).square().sum() + alpha * scores.square().sum()
    torch.testing.assert_close(loss.objective, objective.detach() / (2 * n))


def test_without_a_penalty_the_gramians_do_not_matter() -> None:
    ones = torch.ones(2)
    batch = Batch(torch.arange(2), torch.arange(2), ones, ones, ones)
    nan = torch.full((3, 3), torch.nan)
    loss = Pointwise(penalty=0.0, l2=0.5)(torch.zeros(2, 3), torch.ones(2, 3), batch, nan, nan)
    # ½(0 − 1)² + 0.5 · (0 + 3)
    assert float(loss.total) == 0.5 + 1.5
    assert float(loss.objective) == 0.5 + 1.5
