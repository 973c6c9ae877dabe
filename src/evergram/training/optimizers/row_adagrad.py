"""Adagrad with one step size a row, for embedding tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from evergram.encoders.mapped_tensors import zeros_beside


class RowAdagrad(torch.optim.Optimizer):
    """x_a ← x_a − rate · g_a / √(Σ_t mean_d g_{a,t}²), for the rows a that a batch has touched.

    One number of state a row instead of one a coordinate, and a step that turns with the basis:
    which basis the columns of a table are written in does not matter.

    Args:
        parameters: tables [N, D]; their gradients may be sparse. The state of a table that is
            mapped from a file is in a file, too.
        rate: the first step moves a row by √D times this.
    Source: Duchi et al. 2011, with the rows for coordinates.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        super().__init__(parameters, {"lr": rate})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"] = zeros_beside(parameter, len(parameter))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group["lr"])

    def _move(self, parameter: Tensor, gradient: Tensor, rate: float) -> None:
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            rows, gradient = gradient.indices()[0], gradient.values()
        else:  # numbers of all rows, which a sparse gradient must not pay for
            rows = torch.arange(len(parameter), device=parameter.device)
        total = self.state[parameter]["sum"]
        seen = total.index_select(0, rows) + gradient.square().mean(1)
        total.index_copy_(0, rows, seen)
        # A row whose gradients were all zero has nowhere to go.
        length = torch.where(seen > 0, seen.rsqrt(), 0.0)
        parameter.index_add_(0, rows, gradient * length[:, None], alpha=-rate)
