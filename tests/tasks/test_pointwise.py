"""Pointwise losses against their definitions, pair by pair."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.support.task_batches import batch_of, normal
from torch import Tensor

from evergram.errors import ShapeError, TrainingError
from evergram.tasks.pointwise import Pointwise
from evergram.tasks.task import Encoded


def test_logistic_is_the_cross_entropy_of_a_bernoulli() -> None:
    query, candidate = normal(5, 3), normal(5, 3, seed=1)
    target = torch.tensor([0.0, 1.0, 0.25, 1.0, 0.0], dtype=torch.float64)
    loss = Pointwise("logistic")(Encoded(query, candidate), batch_of([0, 1, 2, 3, 4], target), {})
    expected = 0.0
    for u, v, t in zip(query, candidate, target.tolist(), strict=True):
        chance = 1 / (1 + math.exp(-float(u @ v)))
        expected -= t * math.log(chance) + (1 - t) * math.log(1 - chance)
    assert float(loss) == pytest.approx(expected / 5)


def test_squared_is_half_the_mean_square() -> None:
    query, candidate = normal(4, 3), normal(4, 3, seed=1)
    target = torch.tensor([0.0, 1.0, 0.5, -2.0], dtype=torch.float64)
    loss = Pointwise()(Encoded(query, candidate), batch_of([0, 1, 2, 3], target), {})
    pairs = zip(query, candidate, target.tolist(), strict=True)
    expected = sum((float(u @ v) - t) ** 2 / 2 for u, v, t in pairs) / 4
    assert float(loss) == pytest.approx(expected)


def test_a_function_of_ones_own_is_a_loss() -> None:
    query, candidate = normal(4, 3).requires_grad_(), normal(4, 3, seed=1).requires_grad_()
    target = normal(4, seed=2)
    batch = batch_of([0, 1, 2, 3], target)

    def quartic(score: Tensor, value: Tensor) -> Tensor:
        return (score - value) ** 4

    def loss(u: Tensor, v: Tensor) -> Tensor:
        mean: Tensor = Pointwise(quartic)(Encoded(u, v), batch, {})
        return mean

    scores = (query * candidate).sum(1).tolist()
    expected = sum((s - t) ** 4 for s, t in zip(scores, target.tolist(), strict=True))
    assert loss(query, candidate).item() == pytest.approx(expected / 4)
    assert torch.autograd.gradcheck(loss, (query, candidate))


def test_another_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="loss is 'cubic'; it must be one of 'squared', "):
        Pointwise("cubic")


@pytest.mark.parametrize(
    ("function", "error", "sentence"),
    [
        (lambda s, t: (s - t).square().mean(), ShapeError, r"returned \[\]; .* shape \[3\]"),
        (lambda s, t: 1.0, ShapeError, "returned float; it must return a tensor"),
        (lambda s, t: (s - t).detach().square(), TrainingError, "without a gradient"),
    ],
)
def test_a_function_that_is_no_loss_of_pairs_is_refused(
    function: Any, error: type[Exception], sentence: str
) -> None:
    rows = Encoded(normal(3, 2).requires_grad_(), normal(3, 2, seed=1).requires_grad_())
    with pytest.raises(error, match=sentence):
        Pointwise(function)(rows, batch_of([0, 1, 2]), {})
