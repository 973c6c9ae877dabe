"""Pointwise losses: each observed pair has a score to reach. [G2] §2."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from evergram.data.sampling import Batch
from evergram.tasks.task import Encoded, Moments, Task, score


class Pointwise(Task):
    """mean ℓ(⟨u, v⟩, t): squared, ½(s − t)², or logistic, log(1 + eˢ) − t s with t in [0, 1].

    Args:
        loss: "squared" or "logistic".
    """

    def __init__(self, loss: str = "squared") -> None:
        super().__init__()
        if loss not in ("squared", "logistic"):
            raise ValueError(f"The pointwise loss {loss!r} is neither 'squared' nor 'logistic'.")
        self.loss = loss

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        scores = score(encoded)
        if self.loss == "squared":
            return 0.5 * (scores - batch.target).square().mean()
        return (functional.softplus(scores) - batch.target * scores).mean()
