"""The loss that aligns a new version with the old ones, in joint training or on pairs alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import torch
from torch import Tensor, nn

from evergram.compatibility.chain import Chain
from evergram.compatibility.kinds import LambdaUnit
from evergram.compatibility.transforms import Transform
from evergram.errors import ShapeError


def history_metric(matrices: Sequence[Tensor], dim: int, unit: LambdaUnit = "norm") -> Tensor:
    """Return S_{k-1}, float64 [D_{k-1}, D_{k-1}], which represents all past versions.

    δᵀ S_{k-1} δ = Σ_{j<k} ‖W_{k-1}^j δ‖², so the cost of the multi-step loss does not grow with the
    number of versions. The recursion is S_0 = I, S_i = I + W_iᵀ S_{i-1} W_i. In unit "paper" the
    term of version j has weight D_{k-1}/D_j, because the authors' code averages over the dims of
    each version: S_i = I + (D_i/D_{i-1}) W_iᵀ S_{i-1} W_i.

    Args:
        matrices: W_1 … W_{k-1}, W_i [D_{i-1}, D_i].
        dim: D_0.
    """
    metric = torch.eye(dim, dtype=torch.float64)
    for matrix in matrices:
        step = matrix.detach().double().cpu()
        old_dim, new_dim = step.shape
        weight = new_dim / old_dim if unit == "paper" else 1.0
        metric = torch.eye(new_dim, dtype=torch.float64) + weight * (step.T @ metric @ step)
    return metric


def alignment_weight(value: float, unit: LambdaUnit, old_dim: int) -> float:
    """Return the factor of `AlignmentLoss` for a λ given in this unit.

    "norm": λ multiplies mean ‖δ‖². "paper": the authors' code sums three means over batch *and*
    dims (users, positive and negative items), so its λ is 3λ/D_{k-1} in unit "norm".
    """
    return value if unit == "norm" else 3 * value / old_dim


class AlignmentLoss(nn.Module):
    """The squared distance of B_k(z_k) from z_{k-1}, at version k-1 only or at all past versions.

    single: mean ‖δ‖². multi: (1/k) mean Σ_{j<k} ‖B_{k-1}^j(z_{k-1} + δ) − B_{k-1}^j(z_{k-1})‖².

    If all past transforms are affine, multi is (1/k) mean δᵀ S δ = (1/k) mean ‖L W z_k + L b −
    L z_{k-1}‖² with S = Lᵀ L. L z_{k-1} is computed once and L W once per step, so that past
    versions cost D³ per step, whatever their number, and nothing per row. Otherwise both vectors
    pass through the past transforms, which are not trained.

    Args:
        chain: of versions 0 to k-1.
        steps: "multi" or "single".
        unit: "norm": all versions have equal weight; "paper": version j has weight D_{k-1}/D_j, see
            `history_metric`.
    Attributes:
        metric: S, float64 [D_{k-1}, D_{k-1}]; None if it is I or a past transform is not affine.
    Source: [BC] Eq. (7), (10); docs/method.md, "One matrix for all of history".
    """

    def __init__(
        self,
        chain: Chain,
        steps: Literal["multi", "single"] = "multi",
        unit: LambdaUnit = "norm",
    ) -> None:
        super().__init__()
        past = chain.newest
        # The factors of versions k-1, k-2, …, 0 in `lifted`.
        self.scales: list[float] = [
            sqrt(chain.dim(past) / chain.dim(n)) if unit == "paper" else 1.0
            for n in range(past, -1, -1)
        ]
        self.versions: int = past + 1 if steps == "multi" else 1
        self.metric: Tensor | None = None
        self.root: Tensor | None
        self.walk: nn.ModuleList = nn.ModuleList()
        root: Tensor | None = None
        if steps == "multi" and past:
            if chain.is_affine(past, 0):
                back = [chain.matrix(n, n - 1) for n in range(1, past + 1)]
                self.metric = history_metric(back, chain.dim(0), unit)
                root = torch.linalg.cholesky(self.metric, upper=True)
            else:
                past_steps = [copy.deepcopy(t) for t in reversed(chain.transforms)]
                self.walk = nn.ModuleList(past_steps).requires_grad_(False)
        self.register_buffer("root", root, persistent=False)

    def lifted(self, embeddings: Tensor) -> Tensor:
        """Map z_{k-1} [N, D_{k-1}] to the coordinates that the loss compares, [N, M]."""
        if self.root is not None:
            return embeddings @ self.root.to(embeddings).T
        levels = [embeddings]
        for step in self.walk:
            levels.append(step(levels[-1]))
        if len(levels) == 1:
            return embeddings
        scaled = [scale * level for scale, level in zip(self.scales, levels, strict=True)]
        return torch.cat(scaled, dim=-1)

    def forward(
        self, transform: Transform, embeddings: Tensor, past: Tensor, weight: Tensor
    ) -> Tensor:
        """Return the loss, a scalar.

        Args:
            transform: B_k.
            embeddings: [B, D_k], z_k.
            past: [B, M], `lifted(z_{k-1})` from a model in evaluation mode; no gradient flows
                through it.
            weight: [B], the weight of each object in the mean; 0 for an object that version k-1
                cannot know or that is held out.
        Raises: ShapeError: numbers of rows or dims differ.
        """
        affine = transform.affine()
        if self.root is not None and affine is not None:
            matrix, offset = affine
            root = self.root.to(matrix)
            lifted = embeddings @ (root @ matrix).T
            if offset is not None:
                lifted = lifted + root @ offset
        else:
            lifted = self.lifted(transform(embeddings))
        if lifted.shape != past.shape:
            raise ShapeError(
                f"Transformed embeddings are {list(lifted.shape)}, past ones {list(past.shape)}; "
                "they must be of the same objects and dims."
            )
        squared = (lifted - past.detach()).square().sum(-1) * weight
        total = weight.sum()
        # The loss of no objects is 0, not 0 / 0.
        return squared.sum() / torch.where(total > 0, total, 1) / self.versions


@dataclass(frozen=True)
class GradientFit:
    """Settings of `fit_by_gradient`."""

    rate: float = 1e-3  # learning rate of Adam
    epochs: int = 100  # passes over the pairs
    batch_size: int = 2048  # pairs per step
    seed: int = 0  # seed for the order of the pairs


def fit_by_gradient(
    transform: Transform,
    new: Tensor,
    old: Tensor,
    loss: AlignmentLoss,
    settings: GradientFit | None = None,
) -> None:
    """Train `transform` in place by Adam to map `new` [N, D_k] to `old` [N, D_{k-1}].

    This works for any kind of transform; `fit_closed_form` solves for the affine ones. A transform
    without parameters is not changed, nor is any transform if there are no pairs.
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
