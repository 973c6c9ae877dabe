"""The loss that holds a model to its past versions, in anybody's training loop."""

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

# An old dim, where there is one past version; else the transforms between the past ones.
Past = int | Sequence[Transform] | Chain


class BackwardAlignment(nn.Module):
    """λ times the alignment loss of [BC], with the backward transform B_k that it trains.

    With δ = B_k(z_k) − z_{k-1} it is λ mean (1/k) Σ_{j<k} ‖W_{k-1}^j δ‖²: what an error at version
    k-1 becomes at each version before. Of the old embeddings only those of version k-1 are needed,
    and no gradient flows into them; [BC] does not keep the older ones. Add it to the task's loss,
    and give its parameters to the same optimiser.

    Args:
        new_dim: D_k.
        past: D_0, where there is one past version; else the transforms [B_1, …, B_{k-1}] between
            past versions, oldest first, or a `Chain` of them. They are not trained.
        transform: the kind of B_k, a name of `transforms.TRANSFORMS`; or a transform to begin with,
            which is trained in place. Those built here are drawn from torch's generator.
        weight: λ.
        unit: "norm": λ is on mean ‖δ‖²; "paper": in the unit of the authors' code, whose sum of
            three means over rows and dims makes it 3 λ / D_j for the error at version j.
        steps: "multi" (Eq. 10), or "single" (Eq. 7), which counts errors at version k-1 alone.
    Attributes:
        transform: B_k. Once trained, `chain()` reads any version as any one before it.
    Raises: ShapeError: dims do not fit, there is no such kind, or a value is not allowed.
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
                f"unit is {unit!r} and steps {steps!r}; they are 'norm' or 'paper', and 'multi' or "
                "'single'."
            )
        self._past = _chain_of(past)
        old_dim = self._past.dim(self._past.newest)
        if isinstance(transform, Transform):
            if (transform.old_dim, transform.new_dim) != (old_dim, new_dim):
                raise ShapeError(
                    f"The transform is [{transform.old_dim}, {transform.new_dim}]; from {new_dim} "
                    f"dims to {old_dim} it must be [{old_dim}, {new_dim}]."
                )
            self.transform: Transform = transform.requires_grad_(True).train()
        else:
            self.transform = build_transform(
                transform, old_dim, new_dim, generator=torch.default_generator
            )
        self.loss: AlignmentLoss = AlignmentLoss(self._past, steps, unit)
        self.strength: float = alignment_weight(weight, unit, old_dim)

    def forward(self, new: Tensor, old: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return a scalar: λ times the mean over the rows, and the transform's own penalty.

        Args:
            new: [B, D_k], z_k; gradients flow.
            old: [B, D_{k-1}], z_{k-1} of the same objects, from a model in evaluation mode.
            mask: [B], true (or 1) for an object that version k-1 can know and that is not held
                out; the others have no share in the mean, and their rows of `old` may hold what
                they like. All take part where it is None.
        Returns: in the transform's dtype, also under autocast.
        Raises: ShapeError: they are of other dims, not of as many objects, or the mask has other
            values than 0 and 1.
        """
        rows, dims = len(new), (self.transform.new_dim, self.transform.old_dim)
        if new.shape != (rows, dims[0]) or old.shape != (rows, dims[1]):
            raise ShapeError(
                f"new is {list(new.shape)} and old {list(old.shape)}; they must be [B, {dims[0]}] "
                f"and [B, {dims[1]}] of the same B objects."
            )
        if mask is not None and mask.shape != (rows,):
            raise ShapeError(f"mask is {list(mask.shape)}; it must be [{rows}], a value each row.")
        with torch.autocast(new.device.type, enabled=False):
            tensors = chain(self.transform.parameters(), self.transform.buffers())
            own = next((t.dtype for t in tensors), torch.promote_types(new.dtype, torch.float32))
            new, old = new.to(own), old.detach().to(new.device, own)
            if mask is None:
                weight = new.new_ones(rows)
            elif not bool(((mask == 0) | (mask == 1)).all()):
                raise ShapeError("mask has a value other than 0 and 1, or false and true.")
            else:
                weight = mask.to(new)
                old = torch.where(weight[:, None] > 0, old, 0.0)
            aligned: Tensor = self.loss(self.transform, new, self.loss.lifted(old), weight)
            return self.strength * aligned + self.transform.penalty().to(aligned)

    def chain(self) -> Chain:
        """Return the chain of all versions, B_k as it is now included: `chain.apply(z, k, j)`."""
        return self._past.extended(self.transform)


def _chain_of(past: Past) -> Chain:
    if isinstance(past, Chain):
        return past
    if isinstance(past, int) and not isinstance(past, bool) and past > 0:
        return Chain([], past)
    if isinstance(past, Sequence) and past and all(isinstance(t, Transform) for t in past):
        return Chain(past, past[0].old_dim)
    raise ShapeError(
        f"past is {past!r}; give the dim of version 0 where it is the only one, else the "
        "transforms between past versions, oldest first, or a Chain of them."
    )
