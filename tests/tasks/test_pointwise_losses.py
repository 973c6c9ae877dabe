"""Losses of pairs against written-out derivatives, finite differences, and their definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.task_batches import batch_of, normal
from torch import Tensor

from evergram.errors import ShapeError
from evergram.tasks.kinds import LOSSES, loss_named
from evergram.tasks.task import Encoded, Pointwise

# ∂ℓ/∂s by hand.
SLOPES: dict[str, Callable[[float, float], float]] = {
    "squared": lambda s, t: s - t,
}


scores = st.floats(-4, 4, allow_nan=False)
targets = st.floats(0, 1, allow_nan=False)


def value(name: str, score: float, target: float) -> float:
    pair = (torch.tensor([x], dtype=torch.float64) for x in (score, target))
    return float(loss_named(name)(*pair))


def test_every_loss_has_its_derivative_here() -> None:
    assert SLOPES.keys() == LOSSES.keys()


@pytest.mark.parametrize("name", LOSSES)
class TestLoss:
    @given(scores, targets)
    def test_its_gradient_is_the_derivative_by_hand(self, name: str, s: float, t: float) -> None:
        score = torch.tensor([s], dtype=torch.float64, requires_grad=True)
        loss = loss_named(name)(score, torch.tensor([t], dtype=torch.float64))
        (slope,) = torch.autograd.grad(loss.sum(), score)
        assert float(slope) == pytest.approx(SLOPES[name](s, t), abs=1e-12)

    def test_its_gradient_is_that_of_finite_differences(self, name: str) -> None:
        score = torch.linspace(-2.93, 3.1, 40, dtype=torch.float64, requires_grad=True)
        target = torch.linspace(0, 1, 40, dtype=torch.float64)
        function = loss_named(name)
        assert torch.autograd.gradcheck(lambda s: function(s, target), (score,))

    @given(scores, scores, targets)
    def test_it_is_convex_in_the_score(self, name: str, a: float, b: float, t: float) -> None:
        middle = value(name, (a + b) / 2, t)
        assert middle <= (value(name, a, t) + value(name, b, t)) / 2 + 1e-12

    def test_it_has_one_number_a_pair_whatever_the_others_are(self, name: str) -> None:
        score, target = torch.randn(6), torch.rand(6)
        whole = loss_named(name)(score, target)
        alone = [loss_named(name)(score[i : i + 1], target[i : i + 1]) for i in range(6)]
        assert whole.shape == (6,)
        torch.testing.assert_close(whole, torch.cat(alone))


def test_a_loss_of_the_package_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "squared", lambda score, target: score - target)
    with pytest.raises(ValueError, match="use it for a loss of this package"):
        loss_named("squared")
    monkeypatch.setitem(LOSSES, "mine", 3)
    with pytest.raises(ValueError, match="it is int in LOSSES; put a function"):
        loss_named("mine")


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


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda s, t: (s - t).square().mean(), r"returned \[\]; .* shape \[3\]"),
        (lambda s, t: 1.0, "returned float; it must return a tensor"),
    ],
)
def test_a_function_that_is_no_loss_of_pairs_is_refused(function: Any, sentence: str) -> None:
    rows = Encoded(normal(3, 2).requires_grad_(), normal(3, 2, seed=1).requires_grad_())
    with pytest.raises(ShapeError, match=sentence):
        Pointwise(function)(rows, batch_of([0, 1, 2]), {})
