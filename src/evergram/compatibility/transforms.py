"""Backward transforms B_k: R^{D_k} → R^{D_{k-1}}, from one version's space to the previous one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Generator, Tensor, nn

from evergram.errors import ShapeError


class Transform(nn.Module, ABC):
    """A map from embeddings of version k [..., D_k] to version k-1 [..., D_{k-1}]. Subclasses set
    `kind` (see `kinds`) and take (old_dim, new_dim, generator=…, **options)."""

    kind: str

    def __init__(self, old_dim: int, new_dim: int) -> None:
        super().__init__()
        self.old_dim = old_dim
        self.new_dim = new_dim

    @property
    def options(self) -> dict[str, Any]:
        """The options that `build_transform` needs to build it, as JSON values."""
        return {}

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map embeddings [..., D_k] to [..., D_{k-1}]. Raises: ShapeError: wrong dim."""
        if embeddings.shape[-1] != self.new_dim:
            raise ShapeError(
                f"Embeddings have dim {embeddings.shape[-1]}; this transform takes {self.new_dim}."
            )
        return self._apply_to(embeddings)

    def _apply_to(self, embeddings: Tensor) -> Tensor:
        """Return the mapped embeddings, whose dim `forward` has checked. Override it if the map is
        not affine, or costs less than a product with its matrix."""
        affine = self.affine()
        assert affine is not None
        mapped = embeddings @ affine[0].T
        return mapped if affine[1] is None else mapped + affine[1]

    @abstractmethod
    def affine(self) -> tuple[Tensor, Tensor | None] | None:
        """Return W [D_{k-1}, D_k] and the offset [D_{k-1}] or None; None if B is not affine."""

    def penalty(self) -> Tensor:
        """Return the term that training adds to the loss, a scalar."""
        return torch.zeros(())


class LinearTransform(Transform):
    """B(z) = W z, without bias. [BC] §3.2.

    W starts with random orthonormal rows (columns, if D_k < D_{k-1}), so that it preserves lengths
    and favours no coordinate of the new space. Without a generator it starts as the first
    coordinates.

    >>> import torch
    >>> from evergram.compatibility.transforms import LinearTransform
    >>> back = LinearTransform.from_matrix(torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    >>> back(torch.tensor([3.0, 4.0, 5.0])).tolist()
    [3.0, 8.0]
    """

    kind = "linear"

    def __init__(self, old_dim: int, new_dim: int, generator: Generator | None = None) -> None:
        super().__init__(old_dim, new_dim)
        self.weight: nn.Parameter = nn.Parameter(_orthonormal(old_dim, new_dim, generator))

    @classmethod
    def from_matrix(cls, weight: Tensor) -> LinearTransform:
        """Return the transform of W [D_{k-1}, D_k]."""
        transform = cls(*weight.shape)
        transform.weight = nn.Parameter(weight.clone())
        return transform

    def affine(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, None


class LambdaOrthogonalTransform(LinearTransform):
    """Linear, with the penalty strength · ‖W Wᵀ − I‖² in training, which bounds error growth. The
    smaller of W Wᵀ and Wᵀ W is used; the two norms differ by a constant."""

    kind = "lambda_orthogonal"

    def __init__(
        self,
        old_dim: int,
        new_dim: int,
        generator: Generator | None = None,
        strength: float = 0.1,
    ) -> None:
        super().__init__(old_dim, new_dim, generator)
        self.strength = strength

    @property
    def options(self) -> dict[str, Any]:
        return {"strength": self.strength}

    def penalty(self) -> Tensor:
        wide = self.weight if self.old_dim <= self.new_dim else self.weight.T
        off = wide @ wide.T - torch.eye(len(wide), dtype=wide.dtype, device=wide.device)
        return self.strength * off.square().sum()


class AffineTransform(Transform):
    """B(z) = W z + b.

    >>> import torch
    >>> from evergram.compatibility.transforms import AffineTransform
    >>> back = AffineTransform.from_matrix(torch.eye(2, 3), torch.tensor([0.5, -0.5]))
    >>> back(torch.tensor([1.0, 1.0, 1.0])).tolist()
    [1.5, 0.5]
    """

    kind = "affine"

    def __init__(self, old_dim: int, new_dim: int, generator: Generator | None = None) -> None:
        super().__init__(old_dim, new_dim)
        self.weight: nn.Parameter = nn.Parameter(_orthonormal(old_dim, new_dim, generator))
        self.offset: nn.Parameter = nn.Parameter(torch.zeros(old_dim))

    @classmethod
    def from_matrix(cls, weight: Tensor, offset: Tensor) -> AffineTransform:
        """Return the transform of W [D_{k-1}, D_k] and b [D_{k-1}]."""
        transform = cls(*weight.shape)
        transform.weight = nn.Parameter(weight.clone())
        transform.offset = nn.Parameter(offset.clone())
        return transform

    def affine(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, self.offset


class TruncateTransform(Transform):
    """The first D_{k-1} coordinates, padded with zeros if D_k < D_{k-1}; NoTrans in [BC].

    >>> import torch
    >>> from evergram.compatibility.transforms import TruncateTransform
    >>> TruncateTransform(old_dim=2, new_dim=3)(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 2.0]
    """

    kind = "truncate"

    def __init__(self, old_dim: int, new_dim: int, generator: Generator | None = None) -> None:
        super().__init__(old_dim, new_dim)
        self.weight: Tensor = nn.Buffer(torch.eye(old_dim, new_dim), persistent=False)

    def _apply_to(self, embeddings: Tensor) -> Tensor:
        missing = self.old_dim - self.new_dim
        return nn.functional.pad(embeddings, (0, missing)) if missing else embeddings

    def affine(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, None


class OrthogonalTransform(Transform):
    """B(z) = Q z with orthonormal rows (columns, if D_k < D_{k-1}): it never amplifies an error. Q
    is the orthogonal factor of the QR decomposition of a free matrix. The diagonal of R is made
    positive, so that an orthonormal matrix is its own Q."""

    kind = "orthogonal"

    def __init__(self, old_dim: int, new_dim: int, generator: Generator | None = None) -> None:
        super().__init__(old_dim, new_dim)
        self.free: nn.Parameter = nn.Parameter(_orthonormal(old_dim, new_dim, generator))

    @classmethod
    def from_matrix(cls, weight: Tensor) -> OrthogonalTransform:
        """Return the transform of an orthonormal Q [D_{k-1}, D_k]."""
        transform = cls(*weight.shape)
        transform.free = nn.Parameter(weight.clone())
        return transform

    @property
    def weight(self) -> Tensor:
        """Q [D_{k-1}, D_k]."""
        is_wide = self.old_dim <= self.new_dim
        q, r = torch.linalg.qr(self.free.T if is_wide else self.free)
        q = q * torch.where(r.diagonal() < 0, -1.0, 1.0).to(q)
        weight: Tensor = q.T if is_wide else q
        return weight

    def affine(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, None


class LowRankTransform(Transform):
    """B(z) = L R z with L [D_{k-1}, rank] and R [rank, D_k]: rank · (D_{k-1} + D_k) parameters."""

    kind = "low_rank"

    def __init__(
        self,
        old_dim: int,
        new_dim: int,
        generator: Generator | None = None,
        rank: int = 32,
    ) -> None:
        super().__init__(old_dim, new_dim)
        self.rank: int = min(rank, old_dim, new_dim)
        self.left: nn.Parameter = nn.Parameter(_orthonormal(old_dim, self.rank, generator))
        self.right: nn.Parameter = nn.Parameter(_orthonormal(self.rank, new_dim, generator))

    @classmethod
    def from_factors(cls, left: Tensor, right: Tensor) -> LowRankTransform:
        """Return the transform of L [D_{k-1}, rank] and R [rank, D_k]."""
        transform = cls(left.shape[0], right.shape[1], rank=left.shape[1])
        transform.left = nn.Parameter(left.clone())
        transform.right = nn.Parameter(right.clone())
        return transform

    @property
    def options(self) -> dict[str, Any]:
        return {"rank": self.rank}

    def _apply_to(self, embeddings: Tensor) -> Tensor:
        return (embeddings @ self.right.T) @ self.left.T

    def affine(self) -> tuple[Tensor, Tensor | None]:
        return self.left @ self.right, None


class ResidualMLPTransform(Transform):
    """B(z) = W z + V relu(U z + a) + b; V starts at zero, so it starts as a linear transform. It
    cannot be moved from candidates to a search's query, so chains with it only serve fetches."""

    kind = "residual_mlp"

    def __init__(
        self,
        old_dim: int,
        new_dim: int,
        generator: Generator | None = None,
        hidden: int = 128,
    ) -> None:
        super().__init__(old_dim, new_dim)
        self.hidden = hidden
        self.weight: nn.Parameter = nn.Parameter(_orthonormal(old_dim, new_dim, generator))
        self.inner: nn.Linear = nn.Linear(new_dim, hidden)
        nn.init.kaiming_normal_(self.inner.weight, nonlinearity="relu", generator=generator)
        nn.init.zeros_(self.inner.bias)
        self.outer: nn.Linear = nn.Linear(hidden, old_dim)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    @property
    def options(self) -> dict[str, Any]:
        return {"hidden": self.hidden}

    def _apply_to(self, embeddings: Tensor) -> Tensor:
        residual: Tensor = self.outer(torch.relu(self.inner(embeddings)))
        return embeddings @ self.weight.T + residual

    def affine(self) -> None:
        return None


def _orthonormal(rows: int, columns: int, generator: Generator | None) -> Tensor:
    """Return a random orthonormal matrix, or an identity-like one without a generator. The
    latter, for loading a saved state, needs no decomposition, which could deadlock on LAPACK's
    threads in a forked process."""
    if generator is None:
        return torch.eye(rows, columns)
    return nn.init.orthogonal_(torch.empty(rows, columns), generator=generator)
