"""Many versions back in one step: the composition of backward transforms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evergram.errors import ShapeError, UnknownVersionError


class Chain:
    """The linear transforms of a lineage, each composition multiplied out once. [BC] Eq. (2), (6).

    Args:
        matrices: W_1 … W_k, where W_i is [D_{i-1}, D_i] and takes version i to version i - 1.
        dim: D_0, needed where there is no matrix yet.
    Raises: ShapeError: neighbours do not fit.
    """

    def __init__(self, matrices: Sequence[Tensor], dim: int) -> None:
        expected = dim
        for i, matrix in enumerate(matrices, start=1):
            if matrix.ndim != 2 or matrix.shape[0] != expected:
                raise ShapeError(
                    f"The transform of version {i} is {list(matrix.shape)}; version {i - 1} has "
                    f"dim {expected}, so it must be [{expected}, dim of version {i}]."
                )
            expected = matrix.shape[1]
        self._matrices = [m.detach().double() for m in matrices]
        self._dim = dim
        self._composed: dict[tuple[int, int], Tensor] = {}

    @property
    def newest(self) -> int:
        return len(self._matrices)

    def dim(self, version: int) -> int:
        self._check(version)
        return self._matrices[version - 1].shape[1] if version else self._dim

    def matrix(self, source: int, target: int) -> Tensor:
        """W_k^j = W_{j+1} ⋯ W_k, float64 [D_j, D_k], for k = source and j = target.

        Raises: UnknownVersionError: a version that is not there, or target later than source.
        """
        self._check(source)
        self._check(target)
        if target > source:
            raise UnknownVersionError(
                f"Version {source} cannot be read as version {target}: transforms lead back only."
            )
        key = source, target
        if key not in self._composed:
            if source == target:
                composed = torch.eye(self.dim(source), dtype=torch.float64)
            else:
                composed = self.matrix(source - 1, target) @ self._matrices[source - 1]
            self._composed[key] = composed
        return self._composed[key]

    def apply(self, embeddings: Tensor, source: int, target: int) -> Tensor:
        """z̃_j = W_k^j z_k: embeddings [..., D_k] to [..., D_j]; the very same where j = k."""
        matrix = self.matrix(source, target)
        if embeddings.shape[-1] != matrix.shape[1]:
            raise ShapeError(
                f"Embeddings have dim {embeddings.shape[-1]}; version {source} has "
                f"{matrix.shape[1]}."
            )
        return embeddings if source == target else embeddings @ matrix.to(embeddings).T

    def _check(self, version: int) -> None:
        if not 0 <= version <= self.newest:
            raise UnknownVersionError(
                f"Version {version} was asked for; the lineage has versions 0 to {self.newest}."
            )
