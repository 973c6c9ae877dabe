"""The objective has the minimum of implicit ALS, whose closed form is the oracle; and its parts."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from tests.support.task_batches import moment
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.errors import ShapeError
from evergram.gramian.estimator import Moment
from evergram.tasks.kinds import squared
from evergram.tasks.task import BPR, Encoded, Objective, Pointwise


@pytest.mark.long
def test_the_minimum_is_that_of_implicit_als() -> None:
    draw = torch.Generator().manual_seed(0)
    a, b, dim, alpha = 8, 6, 2, 0.3
    observed = torch.rand(a, b, generator=draw) < 0.4
    query = torch.randn(a, dim, dtype=torch.float64, generator=draw)
    candidate = torch.randn(b, dim, dtype=torch.float64, generator=draw)

    def solve(other: Tensor, mask: Tensor) -> Tensor:
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

    n = int(observed.sum())
    rows, columns = torch.nonzero(observed, as_tuple=True)
    leaf_query, leaf_candidate = query.requires_grad_(), candidate.requires_grad_()
    # The conversion of method.md: λ = ½ α₀ |A||B| / n, with the uniform measure.
    objective = Objective(Pointwise(squared), [0.5 * alpha * a * b / n])
    batch = Batch(
        rows,
        columns,
        torch.ones(n, dtype=torch.float64),
        (n / a / observed.sum(1).double())[rows, None],
        (n / b / observed.sum(0).double())[columns, None],
    )
    uniform_query = torch.full((a,), 1 / a, dtype=torch.float64)
    uniform_candidate = torch.full((b,), 1 / b, dtype=torch.float64)
    loss = objective(
        Encoded(leaf_query[rows], leaf_candidate[columns]),
        batch,
        {
            "query": [moment(leaf_query, uniform_query)],
            "candidate": [moment(leaf_candidate, uniform_candidate)],
        },
    )
    for gradient in torch.autograd.grad(loss.total, [leaf_query, leaf_candidate]):
        assert float(gradient.abs().max()) < 1e-6
    scores = query @ candidate.T
    value = (1 - scores[observed]).square().sum() + alpha * scores.square().sum()
    torch.testing.assert_close(loss.objective, value.detach() / (2 * n))


def test_without_a_penalty_the_gramians_do_not_matter() -> None:
    ones = torch.ones(2)
    batch = Batch(torch.arange(2), torch.arange(2), ones, ones[:, None], ones[:, None])
    nan = {side: [Moment(torch.full((3, 3), torch.nan))] for side in ("query", "candidate")}
    objective = Objective(Pointwise(squared), [0.0], l2=0.5)
    assert not objective.wants_moments
    loss = objective(Encoded(torch.zeros(2, 3), torch.ones(2, 3)), batch, nan)
    # ½(0 − 1)² + 0.5 · (0 + 3)
    assert float(loss.total) == 0.5 + 1.5
    assert float(loss.objective) == 0.5 + 1.5


@pytest.mark.parametrize(("measure", "norms"), [("examples", 0 + 3 + 12), ("penalty", 0 + 6)])
def test_norms_are_of_negatives_too(measure: str, norms: float) -> None:
    """[BC] App. A: ½ (‖u‖² + ‖i⁺‖² + ‖i⁻‖²); a negative has no weight in a measure."""
    ones = torch.ones(2)
    weight = 2 * ones[:, None]
    batch = Batch(torch.arange(2), torch.arange(2), ones, weight, weight)
    objective = Objective(BPR(), [0.0], l2=0.01, l2_measure=measure)
    encoded = Encoded(torch.zeros(2, 3), torch.ones(2, 3), 2 * torch.ones(2, 3))
    loss = objective(encoded, batch, {"query": [], "candidate": []})
    # log(1 + e⁰) + 0.01 · norms
    assert float(loss.total) == pytest.approx(math.log(2) + 0.01 * norms)


@pytest.mark.parametrize("strengths", [[0.7, 2.0], [0.0, 2.0]])
@pytest.mark.parametrize("l2_measure", ["examples", "penalty", None])
@pytest.mark.parametrize("width", [0, 2])
def test_two_measures_a_prior_sparse_weights_and_norms_are_one_sum_over_all_pairs(
    width: int, l2_measure: str | None, strengths: list[float]
) -> None:
    """Σ_ab (Σ_r λ_r p_ra q_rb + w_ab) (s − π)² + norms, one by one, for value and gradient."""
    draw = torch.Generator().manual_seed(1)
    a, b, dim, l2 = 5, 4, 3, 0.4 if l2_measure else 0.0

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=draw)

    query, candidate = normal(a, dim).requires_grad_(), normal(b, dim).requires_grad_()
    q, r = normal(a, width), normal(b, width)
    measures = {
        side: torch.rand(size, 2, dtype=torch.float64, generator=draw)
        for side, size in (("query", a), ("candidate", b))
    }
    measures = {side: p / p.sum(0) for side, p in measures.items()}
    rows = torch.tensor([0, 1, 2, 3, 4, 0, 2, 3])
    columns = torch.tensor([0, 1, 2, 3, 0, 3, 1, 2])
    n = len(rows)
    sparse = normal(n)
    expected = torch.zeros((), dtype=torch.float64)
    for (k, strength), i, j in product(enumerate(strengths), range(a), range(b)):
        missed = torch.dot(query[i], candidate[j]) - torch.dot(q[i], r[j])
        weight = strength * measures["query"][i, k] * measures["candidate"][j, k]
        expected = expected + weight * missed**2
    for i, j, w in zip(rows, columns, sparse, strict=True):
        missed = torch.dot(query[i], candidate[j]) - torch.dot(q[i], r[j])
        expected = expected + w / n * missed**2
        expected = expected + 0.5 * (torch.dot(query[i], candidate[j]) - 1) ** 2 / n
        if l2_measure == "examples":
            norms = torch.dot(query[i], query[i]) + torch.dot(candidate[j], candidate[j])
            expected = expected + l2 * norms / n
    if l2_measure == "penalty":
        for side, rows_of in (("query", query), ("candidate", candidate)):
            for share, row in zip(measures[side][:, 0], rows_of, strict=True):
                expected = expected + l2 * share * torch.dot(row, row)
    counts = {"query": rows.bincount(), "candidate": columns.bincount()}
    weights = {s: measures[s] * (n / counts[s].double())[:, None] for s in counts}
    constant = sum(
        strength
        * float(
            (
                ((q * measures["query"][:, k, None]).T @ q)
                * ((r * measures["candidate"][:, k, None]).T @ r)
            ).sum()
        )
        for k, strength in enumerate(strengths)
    )
    loss = Objective(
        Pointwise(squared), strengths, l2, constant=constant, l2_measure=l2_measure or "examples"
    )(
        Encoded(
            query[rows],
            candidate[columns],
            None,
            q[rows] if width else None,
            r[columns] if width else None,
        ),
        Batch(
            rows,
            columns,
            torch.ones(n, dtype=torch.float64),
            weights["query"][rows],
            weights["candidate"][columns],
            None,
            sparse,
        ),
        {
            "query": [moment(query, measures["query"][:, k], q) for k in range(2)],
            "candidate": [moment(candidate, measures["candidate"][:, k], r) for k in range(2)],
        },
    )
    torch.testing.assert_close(loss.objective, expected.detach())
    gradients = torch.autograd.grad(loss.total, [query, candidate])
    for mine, theirs in zip(
        gradients, torch.autograd.grad(expected, [query, candidate]), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


class Returns(BPR):
    """A task of one's own, with a mistake."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, *_: Any) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (1.0, "Returns returned float"),
        (torch.ones(3), r"Returns returned \[3\]"),
        (torch.tensor(1.0), "has no gradient, so observed pairs would have no effect"),
    ],
)
def test_a_loss_that_cannot_train_is_refused(value: Any, sentence: str) -> None:
    rows = torch.ones(2, 3, requires_grad=True)
    pair, ones = torch.arange(2), torch.ones(2)
    batch = Batch(pair, pair, ones, ones[:, None], ones[:, None])
    with pytest.raises(ShapeError, match=sentence):
        Objective(Returns(value))(Encoded(rows, rows), batch, {})
