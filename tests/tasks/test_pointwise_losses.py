"""Losses of pairs against written-out derivatives, finite differences, and what they must do."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from evergram.tasks.pointwise_losses import LOSSES, PointwiseLoss, loss_named


def _sign(x: float) -> float:
    return math.copysign(1.0, x)


# ∂ℓ/∂s by hand, for s away from kinks.
SLOPES: dict[str, Callable[[float, float], float]] = {
    "squared": lambda s, t: s - t,
    "absolute": lambda s, t: _sign(s - t),
    "huber": lambda s, t: max(-1.0, min(1.0, s - t)),
    "logistic": lambda s, t: 1 / (1 + math.exp(-s)) - t,
    "hinge": lambda s, t: -t * (s < 1) + (1 - t) * (s > -1),
    "squared_hinge": lambda s, t: -t * max(0.0, 1 - s) + (1 - t) * max(0.0, 1 + s),
}
scores = st.floats(-4, 4, allow_nan=False)
targets = st.floats(0, 1, allow_nan=False)


def value(name: str, score: float, target: float) -> float:
    pair = (torch.tensor([x], dtype=torch.float64) for x in (score, target))
    return float(loss_named(name).function(*pair))


def test_every_loss_has_its_derivative_here() -> None:
    assert SLOPES.keys() == LOSSES.keys()


@pytest.mark.parametrize("name", LOSSES)
class TestLoss:
    @given(scores, targets)
    def test_its_gradient_is_the_derivative_by_hand(self, name: str, s: float, t: float) -> None:
        if min(abs(s - t), abs(abs(s - t) - 1), abs(abs(s) - 1)) < 1e-6:
            return  # a kink
        score = torch.tensor([s], dtype=torch.float64, requires_grad=True)
        loss = loss_named(name).function(score, torch.tensor([t], dtype=torch.float64))
        (slope,) = torch.autograd.grad(loss.sum(), score)
        assert float(slope) == pytest.approx(SLOPES[name](s, t), abs=1e-12)

    def test_its_gradient_is_that_of_finite_differences(self, name: str) -> None:
        score = torch.linspace(-2.93, 3.1, 40, dtype=torch.float64, requires_grad=True)
        target = torch.linspace(0, 1, 40, dtype=torch.float64)
        function = loss_named(name).function
        assert torch.autograd.gradcheck(lambda s: function(s, target), (score,))

    @given(scores, scores, targets)
    def test_it_is_convex_in_the_score(self, name: str, a: float, b: float, t: float) -> None:
        middle = value(name, (a + b) / 2, t)
        assert middle <= (value(name, a, t) + value(name, b, t)) / 2 + 1e-12

    def test_it_has_one_number_a_pair_whatever_the_others_are(self, name: str) -> None:
        score, target = torch.randn(6), torch.rand(6)
        whole = loss_named(name).function(score, target)
        alone = [loss_named(name).function(score[i : i + 1], target[i : i + 1]) for i in range(6)]
        assert whole.shape == (6,)
        torch.testing.assert_close(whole, torch.cat(alone))


@pytest.mark.parametrize(("name", "score"), [("squared", 0.3), ("absolute", 0.3), ("huber", 0.3)])
def test_losses_of_distance_are_least_at_the_target(name: str, score: float) -> None:
    assert value(name, score, score) == 0
    assert min(value(name, score + d, score) for d in (-2.0, -0.1, 0.1, 2.0)) > 0


def test_margins_and_tails() -> None:
    assert value("hinge", 1.5, 1) == value("squared_hinge", 1.5, 1) == 0
    assert value("hinge", -1.5, 0) == value("squared_hinge", -1.5, 0) == 0
    assert value("hinge", 0.25, 1) == 0.75
    assert value("squared_hinge", 0.25, 1) == pytest.approx(0.75**2 / 2)
    assert value("huber", 5, 1) == 3.5
    assert value("huber", 1.5, 1) == 0.125


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"one of 'squared', .*_hinge', or the name of"):
        loss_named("cubic")


def test_a_bare_function_is_a_loss_of_any_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def quartic(score: Tensor, target: Tensor) -> Tensor:
        return (score - target) ** 4

    monkeypatch.setitem(LOSSES, "quartic", quartic)
    assert loss_named("quartic") == PointwiseLoss(quartic, -math.inf, math.inf)


def test_names_are_known_without_torch() -> None:
    code = (
        "import sys\nfrom evergram.tasks.pointwise_losses import loss_named\n"
        "loss_named('hinge')\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_loss_of_the_package_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "squared", lambda score, target: score - target)
    with pytest.raises(ValueError, match="name of another loss of this package"):
        loss_named("squared")
    monkeypatch.setitem(LOSSES, "mine", 3)
    with pytest.raises(ValueError, match="it is int in LOSSES; put a function"):
        loss_named("mine")
