"""Pointwise losses: each observed pair has a score to reach. [G2] §2."""

from __future__ import annotations

from torch import Tensor

from evergram.data.sampling import Batch
from evergram.errors import ShapeError, TrainingError
from evergram.tasks.pointwise_losses import PairLoss, loss_named
from evergram.tasks.task import Encoded, Moments, Task, score


class Pointwise(Task):
    """mean ℓ(⟨u, v⟩, t) over observed pairs, for any ℓ. [G2] Eq. (1).

    >>> import torch
    >>> from evergram.tasks import Pointwise
    >>> quartic = Pointwise(lambda score, target: (score - target) ** 4)

    Args:
        loss: a name in `LOSSES`, or a function of scores [B] and targets [B] that returns one
            number a pair, [B].
    Raises: ValueError: no loss has that name.
    """

    is_mean_of_pairs = True

    def __init__(self, loss: str | PairLoss = "squared") -> None:
        super().__init__()
        self.loss = loss
        try:
            self.function: PairLoss = loss_named(loss).function if isinstance(loss, str) else loss
        except ValueError as error:
            raise ValueError(f"The pointwise loss is {loss!r}; {error}.") from None

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        """Return the mean loss of the batch's pairs.

        Raises:
            ShapeError: the function returned something else than one number a pair.
            TrainingError: what it returned does not depend on the scores.
        """
        scores = score(encoded)
        losses = self.function(scores, batch.target)
        shape = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        if shape != list(scores.shape):
            raise ShapeError(
                f"The pointwise loss returned {shape}; it must return a tensor of shape "
                f"{list(scores.shape)}, the loss of each pair: leave the mean to the task."
            )
        if scores.requires_grad and not losses.requires_grad:
            raise TrainingError(
                "The pointwise loss returned a tensor without a gradient; compute it from the "
                "scores with torch's functions, without detach(), item() or NumPy."
            )
        return losses.mean()
