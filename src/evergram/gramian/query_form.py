"""The objective of one query with all candidates fixed: a quadratic form, minimised exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from evergram.errors import DataError, ShapeError

Rule = Literal["exact", "approximate", "mean"]
Length = Literal["free", "unit", "scaled"]
# Numbers of the matrices that are solved at once.
NUMBERS = 1 << 23
# A matrix whose Cholesky factor has so small a part of its largest entry on its diagonal is taken
# for a singular one.
SINGULAR = 1e-7
# Halvings of the interval that holds the multiplier of ‖u‖ = 1: as many as float64 has bits.
HALVINGS = 64
# A row's squared length is short of 1 by more than rounding makes it.
HARD = 1e-6


@dataclass(frozen=True)
class Interactions:
    """The candidates that Q queries met, one after the other.

    Args:
        query: int64 [n], ascending, which of the Q queries each is of; every query has at least
            one.
        vectors: [n, D], of the candidates.
        weight: [n], how often each was met, above 0.
        target: [n], the score that each should have.
    """

    query: Tensor
    vectors: Tensor
    weight: Tensor
    target: Tensor


class Term(NamedTuple):
    """strength · m^power (½ uᵀM u − cᵀu), a part of a query's objective beside its own pairs.

    Args:
        matrix: M [D, D], symmetric without negative eigenvalues.
        centre: c [D].
    """

    strength: float
    power: float
    matrix: Tensor
    centre: Tensor


@dataclass(frozen=True)
class QueryForm:
    """½ uᵀA u − bᵀu, what a query u costs that met m = Σ w candidates v with targets t.

        A = squares Σ w v vᵀ + Σ_t strength_t m^power_t M_t
        b = pull Σ w t v     + Σ_t strength_t m^power_t c_t

    >>> import torch
    >>> from evergram.gramian import Interactions, QueryForm
    >>> one, other = torch.eye(2, dtype=torch.float64)
    >>> met = Interactions(
    ...     torch.tensor([0, 0]), torch.stack([one, other]), torch.tensor([3.0, 1.0]), torch.ones(2)
    ... )
    >>> QueryForm.mean(2).minimise(met)
    tensor([[0.7500, 0.2500]], dtype=torch.float64)

    Args:
        rule: "exact", the objective that the version was trained by; "approximate", a quadratic in
            its place; or "mean", the mean of the candidates' vectors.
        strengths, powers: float64 [T].
        matrices: float64 [T, D, D], M, symmetric without negative eigenvalues.
        centres: float64 [T, D], c.
        squares, pull: of the interactions' own terms.
        length: "free"; "unit", the minimum is sought among u of length 1; or "scaled", it is sought
            among all u, and then brought to length 1.
        values: whether a target is the pair's value; else it is 1.
    Raises: ShapeError: the shapes disagree. DataError: a number is not finite.
    Source: docs/method.md, "A new query".
    """

    rule: Rule
    strengths: Tensor
    powers: Tensor
    matrices: Tensor
    centres: Tensor
    squares: float = 1.0
    pull: float = 1.0
    length: Length = "free"
    values: bool = False

    def __post_init__(self) -> None:
        terms, dim = self.centres.shape if self.centres.ndim == 2 else (-1, -1)
        shapes = {
            "strengths": (terms,),
            "powers": (terms,),
            "matrices": (terms, dim, dim),
            "centres": (terms, dim),
        }
        for name, shape in shapes.items():
            tensor = getattr(self, name)
            if tuple(tensor.shape) != shape or tensor.dtype != torch.float64:
                raise ShapeError(
                    f"{name} of a query's form is {tensor.dtype} {list(tensor.shape)}; it must be "
                    f"float64 {list(shape)}, [T], [T, D] or [T, D, D] of one T and D."
                )
            if not bool(tensor.isfinite().all()):
                raise DataError(f"{name} of a query's form has a NaN or an infinity.")

    @classmethod
    def mean(cls, dim: int, *, normalize: bool = False) -> Self:
        """Return the form whose minimum is the weighted mean of the candidates' vectors.

        Args:
            normalize: the mean is brought to length 1.
        """
        term = Term(1.0, 1.0, torch.eye(dim), torch.zeros(dim))
        return cls.of("mean", [term], squares=0.0, length="scaled" if normalize else "free")

    @classmethod
    def of(
        cls,
        rule: Rule,
        terms: Sequence[Term],
        *,
        squares: float = 1.0,
        pull: float = 1.0,
        length: Length = "free",
        values: bool = False,
    ) -> Self:
        """Return the form of some terms, at least one."""
        strengths, powers, matrices, centres = zip(*terms, strict=True)
        return cls(
            rule,
            torch.tensor(strengths, dtype=torch.float64),
            torch.tensor(powers, dtype=torch.float64),
            torch.stack([matrix.double() for matrix in matrices]),
            torch.stack([centre.double() for centre in centres]),
            squares,
            pull,
            length,
            values,
        )

    @property
    def dim(self) -> int:
        return self.centres.shape[1]

    def minimise(self, met: Interactions) -> Tensor:
        """Return the vector of each query, float64 [Q, D]: the shortest of them where there are
        several.

        Raises: ShapeError: the vectors are of another dim. DataError: a query of length 1 has no
            direction, as its candidates' vectors add up to zero; or weights are too large.
        """
        if met.vectors.ndim != 2 or met.vectors.shape[1] != self.dim:
            raise ShapeError(
                f"The candidates' vectors are {list(met.vectors.shape)}; the form is of [n, "
                f"{self.dim}]."
            )
        return torch.cat([self._minimised(block) for block in self._blocks(met)])

    def _blocks(self, met: Interactions) -> Iterator[Interactions]:
        """Yield the interactions of so many queries that their matrices fit into memory."""
        queries = max(1, NUMBERS // self.dim**2)
        for start in range(0, int(met.query[-1]) + 1, queries):
            mine = (met.query >= start) & (met.query < start + queries)
            yield Interactions(
                met.query[mine] - start,
                met.vectors[mine].double(),
                met.weight[mine].double(),
                met.target[mine].double(),
            )

    def _minimised(self, met: Interactions) -> Tensor:
        count, dim = int(met.query[-1]) + 1, self.dim
        times = torch.zeros(count, dtype=torch.float64).index_add(0, met.query, met.weight)
        scales = self.strengths * times[:, None] ** self.powers  # [Q, T]
        weighted = met.vectors * met.weight[:, None]
        line = torch.zeros(count, dim, dtype=torch.float64)
        line = line.index_add(0, met.query, weighted * (self.pull * met.target)[:, None])
        line = line + scales @ self.centres
        matrix = (scales @ self.matrices.flatten(1)).view(count, dim, dim)
        if self.squares:
            sizes = torch.bincount(met.query, minlength=count).tolist()
            pairs = zip(torch.split(weighted, sizes), torch.split(met.vectors, sizes), strict=True)
            for own, (scaled, vectors) in zip(matrix, pairs, strict=True):
                own.addmm_(scaled.T, vectors, alpha=self.squares)
        if not bool(matrix.isfinite().all()) or not bool(line.isfinite().all()):
            raise DataError("A query's weights or targets are too large; give smaller weights.")
        if self.length == "unit":
            return _on_sphere(matrix, line)
        lowest = _lowest(matrix, line)
        return lowest if self.length == "free" else _normalised(lowest)


def _lowest(matrix: Tensor, line: Tensor) -> Tensor:
    """Return the shortest minimiser of ½ uᵀA u − bᵀu for each of [Q, D, D] and [Q, D]."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    lengths = factor.diagonal(dim1=-2, dim2=-1)
    singular = (failed > 0) | (lengths.amin(-1) <= SINGULAR * lengths.amax(-1))
    solved = torch.zeros_like(line)
    regular = ~singular
    solved[regular] = torch.cholesky_solve(line[regular, :, None], factor[regular])[..., 0]
    if bool(singular.any()):
        inverse = torch.linalg.pinv(matrix[singular], rtol=SINGULAR**2, hermitian=True)
        solved[singular] = (inverse @ line[singular, :, None])[..., 0]
    return solved


def _on_sphere(matrix: Tensor, line: Tensor) -> Tensor:
    """Return the minimiser of ½ uᵀA u − bᵀu among ‖u‖ = 1.

    It is (A + μ I)⁻¹b for the one μ above −(the least eigenvalue) with that length (Gander, Golub
    and von Matt 1989), which halving finds to the last bit.
    """
    values, axes = torch.linalg.eigh(matrix)
    along = (axes.mT @ line[..., None])[..., 0]  # b by axes
    least = values[:, :1]
    size = along.norm(dim=-1, keepdim=True)
    if bool((size == 0).any()):
        raise _without_direction(size)
    # At the low end the first axis alone makes u at least as long as 1; at the high end u is no
    # longer than that.
    gap = values - least
    low, high = along[:, :1].abs(), size.clone()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        long = (along / (gap + middle)).norm(dim=-1, keepdim=True) > 1
        low, high = torch.where(long, middle, low), torch.where(long, high, middle)
    turned = along / (gap + high)
    # b may have no part along the first axis, and what it gives along the others be too short: the
    # first axis makes up for it, at either end.
    missing = 1 - turned.square().sum(-1)
    turned[:, 0] = torch.where(missing > HARD, missing.clamp(min=0).sqrt(), turned[:, 0])
    return _normalised((axes @ turned[..., None])[..., 0])


def _normalised(line: Tensor) -> Tensor:
    """Return the rows at length 1. Raises: DataError: one is zero."""
    size = line.norm(dim=-1, keepdim=True)
    if bool((size == 0).any()):
        raise _without_direction(size)
    normalised: Tensor = line / size
    return normalised


def _without_direction(size: Tensor) -> DataError:
    row = int((size[:, 0] == 0).nonzero()[0])
    return DataError(
        f"The candidates of query {row + 1} have vectors that add up to zero, so that its vector "
        "has no direction; add or leave out a candidate."
    )
