"""Fit a transform by gradient descent to the embeddings of two trained versions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.compatibility.alignment_loss import AlignmentLoss
from evergram.compatibility.transforms import Transform


@dataclass(frozen=True)
class GradientFit:
    """Settings of `fit_by_gradient`.

    Args:
        rate: learning rate of Adam.
        epochs: passes over the pairs.
        batch_size: pairs a step.
        seed: of the order of the pairs.
    """

    rate: float = 1e-3
    epochs: int = 100
    batch_size: int = 2048
    seed: int = 0


def fit_by_gradient(
    transform: Transform,
    new: Tensor,
    old: Tensor,
    loss: AlignmentLoss,
    settings: GradientFit | None = None,
) -> None:
    """Train `transform` in place by Adam to map `new` [N, D_k] to `old` [N, D_{k-1}].

    It fits any kind of transform; `fit_closed_form` solves for the affine ones. A transform without
    parameters stays as it is, and so does any transform if there are no pairs.
    Source: [BC] §3.2.3, post-hoc.
    """
    chosen = settings or GradientFit()
    parameters = [p for p in transform.parameters() if p.requires_grad]
    if not parameters or not len(new):
        return
    optimizer = torch.optim.Adam(parameters, lr=chosen.rate)
    generator = torch.Generator().manual_seed(chosen.seed)
    weight = torch.ones(len(new))
    lifted = loss.lifted(old)
    for _ in range(chosen.epochs):
        order = torch.randperm(len(new), generator=generator)
        for rows in torch.split(order, chosen.batch_size):
            optimizer.zero_grad()
            total = loss(transform, new[rows], lifted[rows], weight[rows]) + transform.penalty()
            total.backward()
            optimizer.step()
