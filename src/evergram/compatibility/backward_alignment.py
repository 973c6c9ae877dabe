"""A loss that keeps a model compatible with its past versions, for any training loop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn

from evergram.compatibility.alignment_loss import AlignmentLoss, alignment_weight
from evergram.compatibility.chain import Chain
from evergram.compatibility.kinds import LambdaUnit, build_transform
from evergram.compatibility.transforms import Transform
from evergram.errors import ShapeError

# D_0 if there is one past version, otherwise the transforms between the past versions.
Past = int | Sequence[Transform] | Chain


class BackwardAlignment(nn.Module):
    """λ times the alignment loss of [BC], together with the backward transform B_k being trained.

    With δ = B_k(z_k) − z_{k-1}, the loss is λ mean (1/k) Σ_{j<k} ‖W_{k-1}^j δ‖²: the error that δ
    causes at each past version. It needs the embeddings of version k-1 only, not the older ones,
    and no gradient flows into them. Add the loss to the task's loss, and pass its parameters to the
    same optimiser.

    Args:
        new_dim: D_k.
        past: D_0 if there is one past version; otherwise the transforms [B_1, …, B_{k-1}] between
            past versions, oldest first, or a `Chain` of them. They are not trained.
        transform: the kind of B_k, a name in `kinds.TRANSFORMS`, initialised from torch's default
            generator; or a transform, which is trained in place.
        weight: λ.
        unit: "norm": λ weights mean ‖δ‖². "paper": λ in the unit of the authors' code, which sums
            three means over rows and dims: the weight of the error at version j is 3 λ / D_j.
        steps: "multi" (Eq. 10), or "single" (Eq. 7), which uses the error at version k-1 only.
    Attributes:
        transform: B_k. Once trained, `chain()` maps any version to any earlier one.
    Raises: ShapeError: dims do not match, the kind is unknown, or a value is not allowed.
    Source: [BC] Eq. (3), (7), (10).

    >>> import torch
    >>> from torch import nn
    >>> from evergram.compatibility import BackwardAlignment
    >>> _ = torch.manual_seed(0)
    >>> model, old = nn.Linear(6, 8), torch.randn(32, 4)
    >>> backward = BackwardAlignment(new_dim=8, past=4)
    >>> optimizer = torch.optim.Adam([*model.parameters(), *backward.parameters()])
    >>> new = model(torch.randn(32, 6))
    >>> loss = new.square().mean() + backward(new, old)
    >>> loss.backward()
    >>> optimizer.step()
    >>> backward.transform(new).shape
    torch.Size([32, 4])
    """

    def __init__(
        self,
        new_dim: int,
        past: Past,
        transform: str | Transform = "linear",
        *,
        weight: float = 1.0,
        unit: LambdaUnit = "norm",
        steps: Literal["multi", "single"] = "multi",
    ) -> None:
        super().__init__()
        if unit not in ("norm", "paper") or steps not in ("multi", "single"):
            raise ShapeError(
                f"unit is {unit!r} and steps is {steps!r}; unit must be 'norm' or 'paper', and "
                "steps 'multi' or 'single'."
            )
        self._past = _chain_of(past)
        old_dim = self._past.dim(self._past.newest)
        if isinstance(transform, Transform):
            if (transform.old_dim, transform.new_dim) != (old_dim, new_dim):
                raise ShapeError(
                    f"The transform is [{transform.old_dim}, {transform.new_dim}]; to map {new_dim}"
                    f" dims to {old_dim}, it must be [{old_dim}, {new_dim}]."
                )
            self.transform: Transform = transform.requires_grad_(True).train()
        else:
            self.transform = build_transform(
                transform, old_dim, new_dim, generator=torch.default_generator
            )
        self.loss: AlignmentLoss = AlignmentLoss(self._past, steps, unit)
        self.strength: float = alignment_weight(weight, unit, old_dim)

    def forward(self, new: Tensor, old: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return a scalar: λ times the mean over the rows, plus the transform's penalty.

        Args:
            new: [B, D_k], z_k; gradients flow.
            old: [B, D_{k-1}], z_{k-1} of the same objects, from a model in evaluation mode.
            mask: [B], true (or 1) for objects that version k-1 can know and that are not held out.
                Other objects are ignored, so their rows of `old` may have any values. None uses
                all objects.
        Returns: in the transform's dtype, also under autocast.
        Raises: ShapeError: dims or numbers of rows differ, or the mask has values other than 0 and
            1.
        """
        rows, dims = len(new), (self.transform.new_dim, self.transform.old_dim)
        if new.shape != (rows, dims[0]) or old.shape != (rows, dims[1]):
            raise ShapeError(
                f"new is {list(new.shape)} and old {list(old.shape)}; they must be [B, {dims[0]}] "
                f"and [B, {dims[1]}] of the same B objects."
            )
        if mask is not None and mask.shape != (rows,):
            raise ShapeError(f"mask is {list(mask.shape)}; it must be [{rows}], one value per row.")
        with torch.autocast(new.device.type, enabled=False):
            tensors = chain(self.transform.parameters(), self.transform.buffers())
            dtype = next((t.dtype for t in tensors), torch.promote_types(new.dtype, torch.float32))
            new, old = new.to(dtype), old.detach().to(new.device, dtype)
            if mask is None:
                weight = new.new_ones(rows)
            elif not bool(((mask == 0) | (mask == 1)).all()):
                raise ShapeError("mask has a value other than 0 and 1 (or false and true).")
            else:
                weight = mask.to(new)
                old = torch.where(weight[:, None] > 0, old, 0.0)
            aligned: Tensor = self.loss(self.transform, new, self.loss.lifted(old), weight)
            return self.strength * aligned + self.transform.penalty().to(aligned)

    def chain(self) -> Chain:
        """Return the chain of all versions, including B_k in its current state."""
        return self._past.extended(self.transform)


def _chain_of(past: Past) -> Chain:
    if isinstance(past, Chain):
        return past
    if isinstance(past, int) and not isinstance(past, bool) and past > 0:
        return Chain([], past)
    if isinstance(past, Sequence) and past and all(isinstance(t, Transform) for t in past):
        return Chain(past, past[0].old_dim)
    raise ShapeError(
        f"past is {past!r}; give the dim of version 0 if it is the only past version, otherwise "
        "the transforms between past versions, oldest first, or a Chain of them."
    )
