"""From one version of a lineage to another: back by its transforms, forward by its forward maps."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evergram.compatibility.certificate import StepError
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import LinearTransform, Transform
from evergram.errors import LineageError
from evergram.lineage.catalog.catalog import Catalog


class VersionChain:
    """The transforms of a catalog's versions, read and checked when they are first needed."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        # The numbers of the versions, and the chain that was read of them.
        self._read: tuple[tuple[int, ...], Chain] | None = None

    @property
    def whole(self) -> Chain:
        """The backward transforms by version; that of a withdrawn version is the identity."""
        catalog = self._catalog
        numbers = catalog.next_version, *catalog.manifests
        if self._read is None or self._read[0] != numbers:
            dim = catalog.manifest(0).dim
            transforms: list[Transform] = []
            for n in range(1, catalog.next_version):
                if n in catalog.manifests:
                    transforms.append(catalog.reader(n).transform(dim))
                    dim = catalog.manifest(n).dim
                else:
                    transforms.append(LinearTransform.from_matrix(torch.eye(dim)))
            self._read = numbers, Chain(transforms, catalog.manifest(0).dim)
        return self._read[1]

    @property
    def active(self) -> Chain:
        """The backward transforms of the versions that were not withdrawn, one after the other."""
        manifests = self._catalog.manifests
        kept = [t for n, t in enumerate(self.whole.transforms, start=1) if n in manifests]
        return Chain(kept, self._catalog.manifest(0).dim)

    @property
    def step_errors(self) -> dict[int, StepError]:
        """Σ_i of every version that was published with one; zero for a withdrawn version."""
        errors = {}
        for n in range(1, self._catalog.next_version):
            if n in self._catalog.manifests:
                error = self._catalog.reader(n).error(self.whole.dim(n - 1))
            else:
                dim = self.whole.dim(n)
                error = StepError(torch.zeros(dim, dim, dtype=torch.float64), 0, math.nan)
            if error is not None:
                errors[n] = error
        return errors

    def forward(self, source: int, target: int) -> tuple[Tensor, Tensor] | None:
        """Return the affine map from an earlier version to a later one.

        Returns: W [D_target, D_source] and the offset [D_target], float64; None if a version on the
            way was published without a forward map.
        Raises: UnknownVersionError. LineageError: `target` is the earlier one.
        """
        dim = self._catalog.manifest(source).dim
        self._catalog.manifest(target)
        if target < source:
            raise LineageError(
                f"Version {target} is before version {source}; the chain leads back to it."
            )
        weight = torch.eye(dim, dtype=torch.float64)
        offset = torch.zeros(dim, dtype=torch.float64)
        for n in range(source + 1, target + 1):
            if n in self._catalog.manifests:
                step = self._catalog.reader(n).forward(self.whole.dim(n - 1))
                if step is None:
                    return None
                weight, offset = step[0] @ weight, step[0] @ offset + step[1]
        return weight, offset
