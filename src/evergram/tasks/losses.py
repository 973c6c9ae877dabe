"""The losses ℓ(s, t) of pairs, by name. Importing this does not import torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evergram.did_you_mean import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

# ℓ(scores [B], targets [B]) → [B], one number a pair, of the same dtype and device.
PairLoss = Callable[["Tensor", "Tensor"], "Tensor"]


@dataclass(frozen=True)
class PointwiseLoss:
    """A loss of pairs, and the targets that it is meant for.

    Args:
        function: ℓ(scores [B], targets [B]) → [B], differentiable in the scores.
        least, most: the range of targets; training refuses a corpus with others.
    """

    function: PairLoss
    least: float = -math.inf
    most: float = math.inf


def squared(score: Tensor, target: Tensor) -> Tensor:
    """Return ½(s − t)², [B]. [G2] §4.2."""
    return 0.5 * (score - target).square()


def absolute(score: Tensor, target: Tensor) -> Tensor:
    """Return |s − t|, [B]."""
    return (score - target).abs()


def huber(score: Tensor, target: Tensor) -> Tensor:
    """Return ½(s − t)² up to a distance of 1, and |s − t| − ½ beyond it, [B]. Huber 1964."""
    distance = (score - target).abs()
    near = distance.clamp(max=1)
    return near * (distance - 0.5 * near)


def logistic(score: Tensor, target: Tensor) -> Tensor:
    """Return log(1 + eˢ) − t s, [B]: the cross entropy of σ(s), t in [0, 1]."""
    from torch.nn import functional

    return functional.softplus(score) - target * score


def hinge(score: Tensor, target: Tensor) -> Tensor:
    """Return t·max(0, 1 − s) + (1 − t)·max(0, 1 + s), [B], t in [0, 1]."""
    return target * (1 - score).clamp(min=0) + (1 - target) * (1 + score).clamp(min=0)


def squared_hinge(score: Tensor, target: Tensor) -> Tensor:
    """Return ½t·max(0, 1 − s)² + ½(1 − t)·max(0, 1 + s)², [B], t in [0, 1]."""
    above, below = (1 - score).clamp(min=0), (1 + score).clamp(min=0)
    return 0.5 * (target * above.square() + (1 - target) * below.square())


# Of a bare function, which a person may put here, every target is allowed.
LOSSES: dict[str, PointwiseLoss | PairLoss] = {
    "squared": PointwiseLoss(squared),
    "absolute": PointwiseLoss(absolute),
    "huber": PointwiseLoss(huber),
    "logistic": PointwiseLoss(logistic, 0, 1),
    "hinge": PointwiseLoss(hinge, 0, 1),
    "squared_hinge": PointwiseLoss(squared_hinge, 0, 1),
}


_OWN = dict(LOSSES)


def loss_named(name: str) -> PointwiseLoss:
    """Return the loss of a name.

    Raises: ValueError: `LOSSES` has none of that name, or another than the package's own under one
        of its names.
    """
    loss = LOSSES.get(name)
    if loss is None:
        raise ValueError(
            f"it must be one of {', '.join(map(repr, LOSSES))}, or the name of a loss of your own "
            "that was put into evergram.tasks.LOSSES in this process"
            f"{did_you_mean(name, LOSSES)}"
        )
    if loss is not _OWN.get(name, loss):
        raise ValueError(
            "it is the name of another loss of this package, as recipes that were published know "
            "it; put a loss of your own into LOSSES under a name of its own"
        )
    if not isinstance(loss, PointwiseLoss) and not callable(loss):
        raise ValueError(
            f"it is {type(loss).__name__} in LOSSES; put a function of scores and targets there"
        )
    return loss if isinstance(loss, PointwiseLoss) else PointwiseLoss(loss)
