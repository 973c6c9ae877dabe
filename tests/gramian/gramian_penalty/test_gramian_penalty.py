"""The value and the gradient of `GramianPenalty`, against sums over all pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.penalty_loops import CANDIDATES, DIM, ESTIMATORS, QUERIES, called, run, tables
from torch import Tensor

from evergram.errors import TrainingError
from evergram.gramian import GramianPenalty


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 7),
    st.integers(1, 4),
    st.sampled_from(["zero", "number", "tables"]),
    st.sampled_from(["sogram", "sagram", "sampled"]),
    st.integers(0, 10**6),
)
def test_with_exact_gramians_it_is_the_double_sum(
    a: int, b: int, dim: int, kind: str, estimator: str, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=draw)

    query, candidate = normal(a, dim).requires_grad_(), normal(b, dim).requires_grad_()
    p, q = (torch.rand(n, dtype=torch.float64, generator=draw) + 0.1 for n in (a, b))
    prior: Any = 0.0
    scores = torch.zeros(a, b, dtype=torch.float64)
    if kind == "number":
        prior = 0.75
        scores += prior
    elif kind == "tables":
        prior = normal(a, 2).float(), normal(b, 2).float()
        for i in range(a):
            for j in range(b):
                scores[i, j] = torch.dot(prior[0][i].double(), prior[1][j].double())
    naive = torch.zeros((), dtype=torch.float64)
    for i in range(a):
        for j in range(b):
            missed = torch.dot(query[i], candidate[j]) - scores[i, j]
            naive = naive + p[i] * q[j] / p.sum() / q.sum() * missed**2
    expected = torch.autograd.grad(naive, [query, candidate])
    penalty = GramianPenalty(dim, estimator, p, q, prior).double()
    # A batch of everybody makes the estimate exact; so is then the next call's.
    ids = torch.arange(a), torch.arange(b)
    called(penalty, query.detach().clone(), candidate.detach().clone(), *ids)
    value = called(penalty, query, candidate, *ids)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value, naive, rtol=1e-10, atol=1e-10)
    gradients_by_both = torch.autograd.grad(3 * value, [query, candidate])
    for mine, theirs in zip(gradients_by_both, expected, strict=True):
        torch.testing.assert_close(mine, 3 * theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("prior", [0.0, -0.5])
def test_its_gradient_is_that_of_its_value(estimator: str, prior: float) -> None:
    penalty = GramianPenalty(DIM, estimator, prior=prior).double()
    run(penalty, 20)
    penalty.eval()
    users, items = (t.double() for t in tables(1))
    a, b = torch.tensor([1, 5, 5, 9, 0]), torch.tensor([2, 2, 11])
    assert torch.autograd.gradcheck(
        lambda u, v: penalty(u, v, a, b), (users[a].requires_grad_(), items[b].requires_grad_())
    )


def gradients(penalty: GramianPenalty, own_batch: bool) -> Tensor:
    """Mean gradient by both tables over many batches of six pairs."""
    draw = torch.Generator().manual_seed(0)
    users, items = (t[:12].clone().requires_grad_() for t in tables())
    rounds = 1000
    for _ in range(rounds):
        a = torch.randint(12, (6,), generator=draw)
        b = a  # each query has one candidate: what is close together must not push itself apart
        if own_batch:
            with torch.no_grad():
                penalty.train()(users[a], items[b])
            penalty.eval()
        penalty(users[a], items[b]).backward()
    assert users.grad is not None
    assert items.grad is not None
    return torch.cat([users.grad, items.grad]) / rounds


def test_the_estimate_of_a_gradient_does_not_contain_its_own_batch() -> None:
    users, items = (t[:12].double().clone().requires_grad_() for t in tables())
    exact = torch.cat(torch.autograd.grad((users @ items.T).square().mean(), [users, items]))

    def error(mean: Tensor) -> float:
        return float((mean.double() - exact).norm() / exact.norm())

    assert error(gradients(GramianPenalty(DIM, "sampled"), own_batch=False)) < 0.1
    assert error(gradients(GramianPenalty(DIM, "sampled"), own_batch=True)) > 0.25


def test_the_first_call_is_zero_and_pushes_nothing() -> None:
    users, items = (t.requires_grad_() for t in tables())
    value = GramianPenalty(DIM)(users, items)
    value.backward()
    assert float(value.detach()) == 0
    assert users.grad is not None
    assert not bool(users.grad.any())


@pytest.mark.parametrize("by_id", [True, False])
def test_sides_may_have_batches_of_different_sizes(by_id: bool) -> None:
    """Shared negatives: positives and more candidates, beside few queries."""
    users, items = tables()
    a, b = torch.arange(3), torch.arange(CANDIDATES)
    penalty = GramianPenalty(DIM, "sampled")
    ids = (a, b) if by_id else (None, None)
    penalty(users[a], items[b], *ids)
    value = penalty(users[a], items[b], *ids)
    expected = (users[a] @ items[b].T).square().mean()
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("measure", ["uniform", "example", 0.5, torch.arange(QUERIES) + 1.0])
@pytest.mark.parametrize("counted", [False, True])
def test_evaluation_of_every_entity_is_the_double_sum_however_they_were_drawn(
    measure: str | float | Tensor, counted: bool
) -> None:
    users, items = (table.double() for table in tables())
    # Query a is drawn in proportion to (1 + a)², far from evenly.
    draws = torch.arange(QUERIES).repeat_interleave((1 + torch.arange(QUERIES)) ** 2)
    draws = draws[torch.randperm(len(draws), generator=torch.Generator().manual_seed(0))]
    counts = torch.bincount(draws)
    weights = {"uniform": counts**0.0, "example": counts, 0.5: counts**0.5}
    p = (measure if isinstance(measure, Tensor) else weights[measure]).double()
    expected = (p[:, None] * (users @ items.T).square()).sum() / p.sum() / CANDIDATES
    penalty = GramianPenalty(
        DIM, query_measure=measure, query_counts=counts if counted else None
    ).double()
    everyone, everything = torch.arange(QUERIES), torch.arange(CANDIDATES)
    penalty(users[draws], items, draws, everything)  # all of an epoch: the estimate is exact
    penalty.eval()
    torch.testing.assert_close(penalty(users, items, everyone, everything), expected)
    # In another order, some of them twice, and with one that was never seen.
    ids = torch.cat([everyone.flip(0), everyone[:7]])
    torch.testing.assert_close(penalty(users[ids], items, ids, everything), expected)
    if not counted and not isinstance(measure, Tensor):
        ids, unseen = torch.cat([everyone, torch.tensor([99])]), torch.ones(1, DIM)
        value = penalty(torch.cat([users, unseen.double()]), items, ids, everything)
        torch.testing.assert_close(value, expected)


def test_embeddings_that_are_in_the_estimate_are_refused() -> None:
    users, items = (t.requires_grad_() for t in tables())
    penalty = GramianPenalty(DIM)
    u, v = 1 * users, 1 * items
    penalty(u, v)
    with pytest.raises(TrainingError, match="in the estimate already"):
        penalty(u, v)
    with pytest.raises(TrainingError, match="accumulate"):
        penalty(1 * users, v)
    with torch.no_grad():  # no gradient is made
        penalty(u, v)
    penalty(1 * users, 1 * items)
    penalty(users, items)
    penalty(users, items)  # a parameter is the same tensor in every step
    with penalty.accumulate():
        u, v = 1 * users, 1 * items
        for part in (slice(0, 5), slice(5, None)):
            penalty(u, v[part])


def test_a_side_without_rows_changes_nothing_and_is_as_its_estimate() -> None:
    users, items = tables()
    penalty = GramianPenalty(DIM, prior=0.2)
    run(penalty, 5)
    # By ids, as in the calls before.
    none, few = torch.empty(0, dtype=torch.long), torch.arange(5)
    before = penalty.query_gramian, penalty.candidate_gramian
    empty = users[:0].clone().requires_grad_()
    penalty(empty, items[:5], none, few)
    assert torch.equal(penalty.query_gramian, before[0])
    assert not torch.equal(penalty.candidate_gramian, before[1])
    value = penalty(empty, 1 * items[:0], none, none)
    value.backward()
    assert empty.grad is not None
    moments = penalty.query.moment(torch.float32), penalty.candidate.moment(torch.float32)
    g, h = ((getattr(moments[0], n) * getattr(moments[1], n)).sum() for n in ("gramian", "cross"))
    assert float(value.detach()) == pytest.approx(float(g - 2 * h + 0.04), rel=1e-5)
    with penalty.accumulate():
        penalty(users[:0], items[:0])
