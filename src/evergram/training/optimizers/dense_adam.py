"""Adam on tables: every row moves in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


class DenseAdam(torch.optim.Adam):
    """torch's Adam, for which a gradient of some rows is one of all, with zeros for the others.

    A row that a batch did not touch goes on by its mean, as Kingma and Ba 2015 have it; lazy
    variants let it rest.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float) -> None:
        # One pass over the tables, in place of one for each operation.
        super().__init__(params, lr, fused=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.to_dense()
        super().step(closure)
