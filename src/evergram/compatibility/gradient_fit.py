"""Fit a transform by gradient to two versions that exist already."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.compatibility.alignment_loss import AlignmentLoss
from evergram.compatibility.transforms import Transform


def fit_by_gradient(
    transform: Transform,
    new: Tensor,
    old: Tensor,
    loss: AlignmentLoss,
    *,
    rate: float = 1e-3,
    epochs: int = 100,
    batch_size: int = 2048,
    seed: int = 0,
) -> None:
    """Train `transform`, in place, to take `new` [N, D_k] to `old` [N, D_{k-1}] by Adam.

    It fits any kind of transform; `fit_closed_form` solves for the affine ones.
    Source: [BC] §3.2.3, post-hoc.
    """
    parameters = [p for p in transform.parameters() if p.requires_grad]
    if not parameters or not len(new):
        return
    optimizer = torch.optim.Adam(parameters, lr=rate)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.ones(len(new))
    lifted = loss.lifted(old)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(new), generator=generator), batch_size):
            optimizer.zero_grad()
            total = loss(transform, new[rows], lifted[rows], weight[rows]) + transform.penalty()
            total.backward()
            optimizer.step()
