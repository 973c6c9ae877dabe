"""The second-order softmax against its sum over all pairs."""

from __future__ import annotations

import pytest
import torch
from tests.support.task_batches import normal
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.gramian.estimator import Moment, exact_moment
from evergram.tasks.second_order import SecondOrderSoftmax
from evergram.tasks.task import Encoded


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
    loss = SecondOrderSoftmax(temperature, centred)(
        Encoded(query[rows], candidate[columns]),
        Batch(rows, columns, weights[0].flatten(), *weights),
        {"query": of(query, p), "candidate": of(candidate, q)},
    )
    torch.testing.assert_close(loss, expected)
    for mine, theirs in zip(
        torch.autograd.grad(loss, [query, candidate]),
        torch.autograd.grad(expected, [query, candidate]),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
