"""Learning rates that fall from epoch to epoch."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def decay_rates(optimizers: Iterable[torch.optim.Optimizer], decay: float, epoch: int) -> None:
    """Set every learning rate to the one it was made with, times decay^epoch.

    It is a function of the epoch, so that a resumed run goes on with the same rates.

    Args:
        epoch: from 0.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            first = group.setdefault("initial_lr", group["lr"])
            group["lr"] = first * decay**epoch
