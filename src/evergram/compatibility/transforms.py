"""Backward transforms: from one version's space to the one before."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evergram.errors import ShapeError


class LinearTransform(nn.Module):
    """B(z) = W z, without bias. [BC] §3.2.

    Args:
        old_dim, new_dim: D_{k-1} and D_k.
        generator: W starts with orthonormal rows (columns, when dims shrink) drawn from it, so
            that no coordinate of the new space is privileged and W neither shrinks nor stretches.
    """

    kind = "linear"

    def __init__(
        self, old_dim: int, new_dim: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        weight = torch.empty(old_dim, new_dim)
        nn.init.orthogonal_(weight, generator=generator)
        self.weight = nn.Parameter(weight)

    @classmethod
    def from_matrix(cls, weight: Tensor) -> LinearTransform:
        """The transform of a given W [D_{k-1}, D_k]."""
        transform = cls(*weight.shape)
        transform.weight = nn.Parameter(weight.clone())
        return transform

    @property
    def old_dim(self) -> int:
        return self.weight.shape[0]

    @property
    def new_dim(self) -> int:
        return self.weight.shape[1]

    def forward(self, embeddings: Tensor) -> Tensor:
        """[..., D_k] to [..., D_{k-1}]. Raises: ShapeError: another dim was given."""
        if embeddings.shape[-1] != self.new_dim:
            raise ShapeError(
                f"Embeddings have dim {embeddings.shape[-1]}; this transform takes {self.new_dim}."
            )
        return embeddings @ self.weight.T
