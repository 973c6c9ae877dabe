"""The softmax over clusters against its formula over all candidates, and the exact softmax."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from tests.support.task_batches import assert_same_gradients, normal
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.tasks.clustered_softmax import ClusteredSoftmax
from evergram.tasks.task import Encoded

ROWS = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, 0, 3, 5, 2])
COLUMNS = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 5, 6])
N, DIM, TEMPERATURE = 7, 3, 0.4


def tables(seed: int = 0) -> tuple[Tensor, Tensor]:
    return normal(6, DIM, seed=seed).requires_grad_(), normal(
        N, DIM, seed=seed + 1
    ).requires_grad_()


def batch_of(rows: Tensor, columns: Tensor) -> Batch:
    """A batch of all pairs or of some of them, whose candidates stand for all alike."""
    ones = torch.ones(len(rows), 1, dtype=torch.float64)
    weights = len(COLUMNS) / N / COLUMNS.bincount().double()
    return Batch(rows, columns, ones[:, 0], ones, weights[columns, None])


def frozen(task: ClusteredSoftmax, query: Tensor, candidate: Tensor) -> ClusteredSoftmax:
    """Let clusters learn from all pairs at once until they are exact, and keep them."""
    encoded = Encoded(query[ROWS].detach(), candidate[COLUMNS].detach())
    for _ in range(9):
        task(encoded, batch_of(ROWS, COLUMNS), {})
    return task.eval()


def oracle(query: Tensor, candidate: Tensor, of: Tensor, temperature: float) -> Tensor:
    """The formula, cluster by cluster; autograd goes through centres and covariance."""
    terms = []
    within = torch.zeros(DIM, DIM, dtype=torch.float64)
    for cluster in torch.unique(of):
        members = candidate[of == cluster]
        centre = members.mean(0)
        terms.append(len(members) * (query @ centre / temperature).exp())
        for member in members:
            within = within + torch.outer(member - centre, member - centre) / N
    second = torch.stack([u @ within @ u for u in query]) / (2 * temperature**2)
    scores = (query[ROWS] * candidate[COLUMNS]).sum(1) / temperature
    return (torch.stack(terms).sum(0).log() + second)[ROWS].mean() - scores.mean()


@pytest.mark.parametrize("clusters", [1, 2, 3, N])
@pytest.mark.parametrize("temperature", [1.0, TEMPERATURE])
def test_exact_clusters_have_the_gradient_of_the_formula(clusters: int, temperature: float) -> None:
    query, candidate = tables()
    task = frozen(ClusteredSoftmax(N, temperature, clusters, rate=1.0), query, candidate)
    assert task.moments is not None
    of = task.moments.clusters().assign(candidate.detach())
    assert len(torch.unique(of)) == clusters
    loss = task(Encoded(query[ROWS], candidate[COLUMNS]), batch_of(ROWS, COLUMNS), {})
    expected = oracle(query, candidate, of, temperature)
    assert_same_gradients(loss, expected, (query, candidate), 1e-9)


def test_as_many_clusters_as_candidates_are_the_exact_softmax() -> None:
    query, candidate = tables()
    task = frozen(ClusteredSoftmax(N, TEMPERATURE, N + 3, rate=1.0), query, candidate)
    loss = task(Encoded(query[ROWS], candidate[COLUMNS]), batch_of(ROWS, COLUMNS), {})
    logits = query[ROWS] @ candidate.T / TEMPERATURE
    expected = torch.nn.functional.cross_entropy(logits, COLUMNS)
    assert_same_gradients(loss, expected, (query, candidate), 1e-9)


def test_a_batch_is_learned_from_after_its_loss_and_not_in_evaluation_mode() -> None:
    query, candidate = tables()
    task = ClusteredSoftmax(N, 1.0, 3)
    encoded, batch = Encoded(query[ROWS], candidate[COLUMNS]), batch_of(ROWS, COLUMNS)
    task(encoded, batch, {})
    before = copy.deepcopy(task.state_dict())
    frozen_loss = task.eval()(encoded, batch, {})
    assert all(torch.equal(before[name], value) for name, value in task.state_dict().items())
    assert torch.equal(task.train()(encoded, batch, {}), frozen_loss)
    assert not torch.equal(before["moments.push"], task.state_dict()["moments.push"])


def test_a_first_batch_without_a_candidate_that_weighs_makes_no_cluster() -> None:
    query, candidate = tables()
    encoded, batch = Encoded(query[ROWS], candidate[COLUMNS]), batch_of(ROWS, COLUMNS)
    weightless = replace(batch, candidate_weight=torch.zeros_like(batch.candidate_weight))
    task, other = (ClusteredSoftmax(N, 1.0, 3) for _ in range(2))
    first = task(encoded, weightless, {})
    first.backward()
    assert math.isfinite(float(first.detach()))
    assert torch.equal(task(encoded, batch, {}), other(encoded, batch, {}))
    assert math.isfinite(float(task(encoded, weightless, {}).detach()))


def test_an_interrupted_run_continues_bit_for_bit() -> None:
    def batches(start: int) -> list[tuple[Encoded, Batch]]:
        return [
            (Encoded(query[ROWS], candidate[COLUMNS]), batch_of(ROWS, COLUMNS))
            for query, candidate in (tables(seed) for seed in range(start, start + 40))
        ]

    whole = ClusteredSoftmax(N, 1.0, 4)
    for encoded, batch in batches(0):
        whole(encoded, batch, {})
    again = ClusteredSoftmax(N, 1.0, 4)
    again(*batches(90)[0], {})  # a state of its own, which the loaded one replaces
    again.load_state_dict(copy.deepcopy(whole.state_dict()))
    for encoded, batch in batches(40):
        assert torch.equal(whole(encoded, batch, {}), again(encoded, batch, {}))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    again.load_state_dict(ClusteredSoftmax(N, 1.0, 4).state_dict())
    assert again.moments is None


@pytest.mark.parametrize("seed", range(2))
def test_the_gradient_nears_the_exact_softmaxs_as_clusters_grow(seed: int) -> None:
    size, dim, temperature = 256, 8, 0.25
    draw = torch.Generator().manual_seed(seed)
    query, candidate = (
        torch.nn.functional.normalize(torch.randn(size, dim, dtype=torch.float64, generator=draw))
        for _ in range(2)
    )
    query.requires_grad_()
    candidate.requires_grad_()
    ids, ones = torch.arange(size), torch.ones(size, 1, dtype=torch.float64)
    encoded, batch = Encoded(query, candidate), Batch(ids, ids, ones[:, 0], ones, ones)
    exact = torch.autograd.grad(
        torch.nn.functional.cross_entropy(query @ candidate.T / temperature, ids),
        (query, candidate),
    )
    errors = []
    for clusters in (1, 16, 128):
        task = ClusteredSoftmax(size, temperature, clusters, rate=1.0)
        for _ in range(12):
            task(Encoded(query.detach(), candidate.detach()), batch, {})
        mine = torch.autograd.grad(task.eval()(encoded, batch, {}), (query, candidate))
        errors.append([float((m - e).norm()) for m, e in zip(mine, exact, strict=True)])
    for side in range(2):
        one, few, many = (error[side] for error in errors)
        assert many < 0.75 * few < 0.75 * one, errors
