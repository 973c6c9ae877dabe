"""Pointwise losses against their definitions, pair by pair."""

from __future__ import annotations

import math

import pytest
import torch
from tests.support.task_batches import batch_of, normal

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


def test_another_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="'hinge' is neither 'squared' nor 'logistic'"):
        Pointwise("hinge")
