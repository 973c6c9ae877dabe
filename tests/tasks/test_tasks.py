"""Each task's loss against its definition, pair by pair."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.gramian.estimator import Moment, exact_moment
from evergram.tasks.bpr import BPR
from evergram.tasks.pointwise import Pointwise
from evergram.tasks.second_order import SecondOrderSoftmax
from evergram.tasks.softmax import Softmax, StreamedFrequency
from evergram.tasks.task import Encoded


def normal(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


def batch(candidate: list[int], target: Tensor | None = None) -> Batch:
    size = len(candidate)
    ones = torch.ones(size, dtype=torch.float64)
    return Batch(
        torch.arange(size),
        torch.tensor(candidate),
        ones if target is None else target,
        ones[:, None],
        ones[:, None],
    )


def test_logistic_is_the_cross_entropy_of_a_bernoulli() -> None:
    query, candidate = normal(5, 3), normal(5, 3, seed=1)
    target = torch.tensor([0.0, 1.0, 0.25, 1.0, 0.0], dtype=torch.float64)
    found = Pointwise("logistic")(Encoded(query, candidate), batch([0, 1, 2, 3, 4], target), {})
    expected = 0.0
    for u, v, t in zip(query, candidate, target.tolist(), strict=True):
        chance = 1 / (1 + math.exp(-float(u @ v)))
        expected -= t * math.log(chance) + (1 - t) * math.log(1 - chance)
    assert float(found) == pytest.approx(expected / 5)


def test_bpr_is_the_chance_to_rank_the_pair_first() -> None:
    query, candidate, negative = normal(4, 3), normal(4, 3, seed=1), normal(4, 3, seed=2)
    found = BPR()(Encoded(query, candidate, negative), batch([0, 1, 2, 3]), {})
    expected = 0.0
    for u, v, w in zip(query, candidate, negative, strict=True):
        expected -= math.log(1 / (1 + math.exp(-float(u @ v - u @ w))))
    assert float(found) == pytest.approx(expected / 4)


def test_softmax_masks_repeats_and_corrects_for_frequency() -> None:
    query, table = normal(4, 3), normal(3, 3, seed=1)
    ids = [2, 0, 2, 1]
    task = Softmax(3, temperature=0.5)
    # A past in which candidate 2 stood in every batch and 0 in one of two.
    for step in range(400):
        task.frequency.observe(torch.tensor([2, 0] if step % 2 else [2, 1]))
    found = float(task(Encoded(query, table[ids]), batch(ids), {}))
    chance = task.frequency.log_chance(torch.arange(3)).exp()
    expected = 0.0
    for row, own in enumerate(ids):
        logits = {}
        for place, other in enumerate(ids):
            if place == row or other != own:
                logit = float(query[row] @ table[other]) / 0.5 - math.log(float(chance[other]))
                logits[place] = logit
        expected -= logits[row] - math.log(sum(math.exp(x) for x in logits.values()))
    assert found == pytest.approx(expected / 4, rel=1e-5)


def test_frequencies_are_learned_from_the_stream() -> None:
    frequency = StreamedFrequency(3, rate=0.01)
    draw = torch.Generator().manual_seed(0)
    chances = torch.tensor([0.9, 0.3, 0.05])
    for _ in range(6000):
        met = torch.nonzero(torch.rand(3, generator=draw) < chances).flatten()
        frequency.observe(met.repeat(2))  # a repeat in one batch counts once
    found = frequency.log_chance(torch.arange(3)).exp()
    torch.testing.assert_close(found, chances, rtol=0.25, atol=0)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_the_second_order_softmax_has_the_gradient_of_its_sum_over_all_pairs(
    centred: bool, temperature: float
) -> None:
    a, b, dim = 6, 5, 3
    query, candidate = normal(a, dim).requires_grad_(), normal(b, dim, seed=1).requires_grad_()
    rows = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, 0, 3])
    columns = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 0])
    n = len(rows)
    # Candidates under any measure; queries under that of examples.
    p = rows.bincount().double() / n
    q = torch.rand(b, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    q = q / q.sum()
    scores = query @ candidate.T / temperature
    mean = (scores * q).sum(1)
    square = (scores.square() * q).sum(1)
    partition = mean + 0.5 * (square - mean.square() if centred else square)
    expected = (p * partition).sum() - scores[rows, columns].mean()

    def of(embeddings: Tensor, share: Tensor) -> list[Moment]:
        ones = torch.ones(len(embeddings), 1, dtype=torch.float64)
        return [Moment(exact_moment(lambda: [(embeddings, share, ones)]))]

    weights = (
        torch.ones(n, 1, dtype=torch.float64),
        (q * n / columns.bincount())[columns, None],
    )
    found = SecondOrderSoftmax(temperature, centred)(
        Encoded(query[rows], candidate[columns]),
        Batch(rows, columns, weights[0].flatten(), *weights),
        {"query": of(query, p), "candidate": of(candidate, q)},
    )
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, [query, candidate]),
        torch.autograd.grad(expected, [query, candidate]),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
