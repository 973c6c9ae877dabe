"""Compositions of backward transforms, across several versions in one step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evergram.compatibility.transforms import Transform
from evergram.errors import DataError, ShapeError, UnknownVersionError


class Chain:
    """The transforms of a lineage; consecutive affine ones are composed into one matrix, once.

    >>> import torch
    >>> from evergram.compatibility.chain import Chain
    >>> from evergram.compatibility.transforms import LinearTransform
    >>> first = LinearTransform.from_matrix(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    >>> second = LinearTransform.from_matrix(torch.tensor([[3.0, 0.0], [0.0, 3.0]]))
    >>> chain = Chain([first, second], dim=2)
    >>> chain.matrix(2, 0).tolist()  # W_1 W_2
    [[3.0, 0.0], [0.0, 6.0]]
    >>> chain.apply(torch.tensor([1.0, 1.0]), 2, 0).tolist()
    [3.0, 6.0]

    Args:
        transforms: B_1 … B_k, where B_i maps version i to version i - 1.
        dim: D_0, needed because `transforms` may be empty.
    Raises: ShapeError: the dims of consecutive transforms do not match.
    Source: [BC] Eq. (2), (6).
    """

    def __init__(self, transforms: Sequence[Transform], dim: int) -> None:
        expected = dim
        for i, transform in enumerate(transforms, start=1):
            if not isinstance(transform, Transform):
                raise ShapeError(
                    f"The transform of version {i} is of type {type(transform).__name__}; it must "
                    "be a Transform, such as the result of Aligner.as_transform()."
                )
            if transform.old_dim != expected:
                shape = [transform.old_dim, transform.new_dim]
                raise ShapeError(
                    f"The transform of version {i} is {shape}; version {i - 1} has dim {expected}, "
                    f"so it must be [{expected}, dim of version {i}]."
                )
            expected = transform.new_dim
        self.transforms: list[Transform] = list(transforms)
        self._dims = [dim, *(t.new_dim for t in transforms)]
        self._steps: list[tuple[Tensor, Tensor] | None] = []
        with torch.no_grad():
            for transform in transforms:
                step = transform.affine()
                if step is None:
                    self._steps.append(None)
                    continue
                weight = step[0].detach().double().cpu()
                zero = torch.zeros(len(weight), dtype=torch.float64)
                offset = zero if step[1] is None else step[1].detach().double().cpu()
                self._steps.append((weight, offset))
        self._composed: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def extended(self, transform: Transform) -> Chain:
        """Return this chain with one more version. Raises: ShapeError: its dims do not match."""
        return Chain([*self.transforms, transform], self._dims[0])

    @property
    def newest(self) -> int:
        return len(self.transforms)

    def dim(self, version: int) -> int:
        self._check(version)
        return self._dims[version]

    def is_affine(self, source: int, target: int) -> bool:
        """Return True if one matrix and one offset map `source` to `target`."""
        self._check_versions(source, target)
        return all(step is not None for step in self._steps[target:source])

    def affine(self, source: int, target: int) -> tuple[Tensor, Tensor]:
        """Return W_k^j [D_j, D_k] and the offset [D_j], float64, for k = source and j = target.

        Raises: UnknownVersionError: there is no such version, or target is later than source.
            ShapeError: a transform between them is not affine.
        """
        self._check_versions(source, target)
        key = source, target
        if key not in self._composed:
            if source == target:
                size = self._dims[source]
                eye = torch.eye(size, dtype=torch.float64)
                self._composed[key] = eye, torch.zeros(size, dtype=torch.float64)
            else:
                last = self._steps[source - 1]
                if last is None:
                    raise ShapeError(
                        f"The transform of version {source} is not affine, so no single matrix "
                        f"maps version {source} to version {target}; use apply() instead."
                    )
                weight, offset = self.affine(source - 1, target)
                self._composed[key] = weight @ last[0], weight @ last[1] + offset
        return self._composed[key]

    def steps(self, source: int, target: int) -> list[tuple[Tensor, Tensor] | Transform]:
        """Return the steps from version k to version j, in the order of application. Consecutive
        affine steps are one float64 matrix and offset; other steps are their transforms.

        The list is never empty: a version maps to itself by the identity matrix.

        Raises: UnknownVersionError.
        """
        self._check_versions(source, target)
        steps: list[tuple[Tensor, Tensor] | Transform] = []
        while source > target:
            stop = source
            while stop > target and self._steps[stop - 1] is not None:
                stop -= 1
            if stop < source:
                steps.append(self.affine(source, stop))
            else:
                stop -= 1
                steps.append(self.transforms[stop])
            source = stop
        return steps or [self.affine(source, target)]

    def matrix(self, source: int, target: int) -> Tensor:
        """Return W_k^j without the offset, float64 [D_j, D_k]. Raises: as `affine`."""
        return self.affine(source, target)[0]

    def apply(self, embeddings: Tensor, source: int, target: int) -> Tensor:
        """Map embeddings of version k, [..., D_k], to version j, [..., D_j].

        If j = k they are returned unchanged.
        Raises: ShapeError: the embeddings have the wrong dim. UnknownVersionError. DataError: they
            are not a torch tensor of floats.
        """
        self._check_versions(source, target)
        if not isinstance(embeddings, Tensor):
            raise DataError(
                f"Embeddings are a {type(embeddings).__name__}, but must be a torch tensor; give "
                "torch.as_tensor(embeddings)."
            )
        if not embeddings.is_floating_point():
            raise DataError(
                f"Embeddings are of {embeddings.dtype}; they must be floats, so give "
                "embeddings.float()."
            )
        if embeddings.shape[-1] != self._dims[source]:
            raise ShapeError(
                f"Embeddings have dim {embeddings.shape[-1]}; version {source} has "
                f"{self._dims[source]}."
            )
        for step in self.steps(source, target) if source > target else ():
            if isinstance(step, tuple):
                weight, offset = (tensor.to(embeddings) for tensor in step)
                embeddings = embeddings @ weight.T
                if bool(offset.any()):
                    embeddings = embeddings + offset
            else:
                with torch.no_grad():
                    embeddings = step(embeddings.float()).to(embeddings)
        return embeddings

    def _check(self, version: int) -> None:
        if not 0 <= version <= self.newest:
            raise UnknownVersionError(
                f"There is no version {version}; the lineage has versions 0 to {self.newest}."
            )

    def _check_versions(self, source: int, target: int) -> None:
        self._check(source)
        self._check(target)
        if target > source:
            raise UnknownVersionError(
                f"Version {source} cannot be read as version {target}: transforms map to earlier "
                "versions only; name an earlier version."
            )
