"""Losses of the spherical family against their sums over all candidates, in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.support.task_batches import normal
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.gramian.estimator import Moment, exact_moment
from evergram.tasks.spherical import FORMS, Spherical
from evergram.tasks.task import Encoded

A, B, DIM = 3, 4, 2
# Examples, one of them twice, and a query of two pairs.
ROWS, COLUMNS = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 1, 2, 3, 3])
N = len(ROWS)
P = ROWS.bincount().double() / N


def quadratic(form: str, scores: Tensor) -> Tensor:
    """t(s), written out."""
    return 1 + scores + scores.square() / 2 if form == "taylor" else 1 + scores.square()


def moments(query: Tensor, candidate: Tensor, q: Tensor) -> dict[str, list[Moment]]:
    def of(embeddings: Tensor, share: Tensor) -> list[Moment]:
        ones = torch.ones(len(embeddings), 1, dtype=torch.float64)
        return [Moment(exact_moment(lambda: [(embeddings, share, ones)]))]

    return {"query": of(query, P), "candidate": of(candidate, q)}


def batch(which: list[int], q: Tensor) -> Batch:
    """The examples of these places, with the weights of examples that are drawn uniformly."""
    rows, columns = ROWS[which], COLUMNS[which]
    ones = torch.ones(len(which), 1, dtype=torch.float64)
    return Batch(rows, columns, ones[:, 0], ones, (q * N / COLUMNS.bincount())[columns, None])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_over_all_batches_its_mean_is_the_sum_over_all_candidates_in_value_and_gradient(
    form: str, temperature: float
) -> None:
    """Every batch of two that independent draws can give. A candidate that its own query pushed
    would fail this: [G2] Prop. 1 asks for independence."""
    query, candidate = normal(A, DIM).requires_grad_(), normal(B, DIM, seed=1).requires_grad_()
    q = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    likelihood = quadratic(form, query @ candidate.T / temperature)
    expected = (P * (likelihood @ q).log()).sum() - likelihood[ROWS, COLUMNS].log().mean()

    task = Spherical(temperature, form)
    known = moments(query.detach(), candidate.detach(), q)
    losses = [
        task(
            Encoded(query[ROWS[list(two)]], candidate[COLUMNS[list(two)]]), batch([*two], q), known
        )
        for two in itertools.product(range(N), repeat=2)
    ]
    loss = torch.stack(losses).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad(loss, [query, candidate]),
        torch.autograd.grad(expected, [query, candidate]),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_log_likelihood_of_the_papers_up_to_the_number_of_candidates(form: str) -> None:
    """−log(t(s_c) / Σ_i t(s_i)), with ε = τ² for the spherical softmax (s² + ε) / Σ (s² + ε)."""
    temperature = 0.7
    query, candidate = normal(A, DIM), normal(B, DIM, seed=1)
    scores = query @ candidate.T
    if form == "square":
        outputs = scores.square() + temperature**2
    else:
        outputs = 1 + scores / temperature + (scores / temperature).square() / 2
    chance = outputs / outputs.sum(1, keepdim=True)
    uniform = torch.full((B,), 1 / B, dtype=torch.float64)
    loss = Spherical(temperature, form)(
        Encoded(query[ROWS], candidate[COLUMNS]),
        batch(list(range(N)), uniform),
        moments(query, candidate, uniform),
    )
    nats = -chance[ROWS, COLUMNS].log().mean() - torch.tensor(float(B)).log()
    assert float(loss) == pytest.approx(float(nats), abs=1e-6)


def test_one_pair_pushes_no_candidate() -> None:
    q = torch.full((B,), 1 / B, dtype=torch.float64)
    query, candidate = normal(A, DIM), normal(B, DIM, seed=1).requires_grad_()
    known = moments(query, candidate.detach(), q)
    loss = Spherical()(Encoded(query[:1], candidate[:1]), batch([0], q), known)
    (slope,) = torch.autograd.grad(loss, candidate)
    score = query[0] @ candidate[0].detach()
    torch.testing.assert_close(slope[0], -(1 + score) / quadratic("taylor", score) * query[0])


@pytest.mark.parametrize("form", FORMS)
def test_an_estimate_that_no_embeddings_have_gives_a_finite_loss(form: str) -> None:
    query, candidate = normal(5, DIM), normal(5, DIM, seed=1)
    ones = torch.ones(5, 1, dtype=torch.float64)
    wrong = Moment(torch.cat([-9 * torch.eye(DIM), torch.zeros(DIM, 1)], dim=1).double())
    places = torch.arange(5)
    loss = Spherical(form=form)(
        Encoded(query, candidate),
        Batch(places, places, ones[:, 0], ones, ones),
        {"query": [wrong], "candidate": [wrong]},
    )
    assert torch.isfinite(loss)
