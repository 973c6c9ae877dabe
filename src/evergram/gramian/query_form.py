"""The objective of a query with all candidates fixed: a quadratic form, minimised exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from evergram.errors import DataError, ShapeError

Rule = Literal["exact", "approximate", "mean"]
Length = Literal["free", "unit", "scaled"]
# Numbers in a block of matrices.
NUMBERS = 1 << 23
# Below this ratio of the smallest to the largest diagonal entry of its Cholesky factor, a matrix
# counts as singular.
SINGULAR = 1e-7
# Bisection steps for the multiplier of ‖u‖ = 1: as many as float64 has bits.
HALVINGS = 64
# A squared length below 1 by more than this is not rounding.
HARD = 1e-6


@dataclass(frozen=True)
class Interactions:
    """The interactions of Q queries with candidates.

    Args:
        query: int64 [n], ascending, the query of each; all of 0 … Q − 1 occur.
        vectors: [n, D], of the candidates.
        weight: [n], number of observations, above 0.
        target: [n], target scores.
    """

    query: Tensor
    vectors: Tensor
    weight: Tensor
    target: Tensor


class Term(NamedTuple):
    """strength · m^power (½ uᵀM u − cᵀu), a term of a query's objective with m interactions."""

    strength: float
    power: float
    matrix: Tensor  # M [D, D], symmetric without negative eigenvalues
    centre: Tensor  # c [D]


@dataclass(frozen=True)
class QueryForm:
    """½ uᵀA u − bᵀu, the objective of a query u with m = Σ w interactions with v, targets t.

        A = squares Σ w v vᵀ + Σ_t strength_t m^power_t M_t
        b = pull Σ w t v     + Σ_t strength_t m^power_t c_t

    >>> import torch
    >>> from evergram.gramian import Interactions, QueryForm
    >>> vectors = torch.eye(2, dtype=torch.float64)
    >>> interactions = Interactions(
    ...     torch.tensor([0, 0]), vectors, torch.tensor([3.0, 1.0]), torch.ones(2)
    ... )
    >>> QueryForm.mean(2).minimise(interactions)
    tensor([[0.7500, 0.2500]], dtype=torch.float64)

    Args:
        rule: "exact": the version's training objective; "approximate": a quadratic approximation of
            it; or "mean": the minimum is the mean of the candidates' vectors.
        strengths, powers: float64 [T].
        matrices: float64 [T, D, D], M, symmetric without negative eigenvalues.
        centres: float64 [T, D], c.
        squares, pull: factors of the interactions' terms.
        length: "free"; "unit": minimise over vectors of length 1; or "scaled": minimise over all
            vectors, then scale to length 1.
        values: whether targets are the pairs' values; otherwise they are 1.
    Raises: ShapeError: a shape or dtype is wrong. DataError: a number is not finite.
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
                    f"float64 {list(shape)}, where centres are [T, D]."
                )
            if not bool(tensor.isfinite().all()):
                raise DataError(f"{name} of a query's form contains NaN or infinity.")

    @classmethod
    def mean(cls, dim: int, *, normalize: bool = False) -> Self:
        """Return the form whose minimum is the weighted mean of the candidates' vectors; with
        `normalize`, scaled to length 1."""
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
        """Return a form from terms, at least one."""
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

    def minimise(self, interactions: Interactions) -> Tensor:
        """Return the minimum of each query, float64 [Q, D]; the shortest one if there are several.

        Raises: ShapeError: the vectors have another dim. DataError: a query of length 1 has no
            direction because its candidates' vectors add up to zero, or weights are too large.
        """
        vectors = interactions.vectors
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise ShapeError(
                f"The candidates' vectors are {list(vectors.shape)}; they must be [n, {self.dim}]."
            )
        return torch.cat([self._minimised(block) for block in self._blocks(interactions)])

    def _blocks(self, interactions: Interactions) -> Iterator[Interactions]:
        """Yield interactions of blocks of queries whose matrices fit into memory."""
        queries = max(1, NUMBERS // self.dim**2)
        for start in range(0, int(interactions.query[-1]) + 1, queries):
            end = start + queries
            mask = (interactions.query >= start) & (interactions.query < end)
            yield Interactions(
                interactions.query[mask] - start,
                interactions.vectors[mask].double(),
                interactions.weight[mask].double(),
                interactions.target[mask].double(),
            )

    def _minimised(self, interactions: Interactions) -> Tensor:
        query, vectors = interactions.query, interactions.vectors
        weight, target = interactions.weight, interactions.target
        count, dim = int(query[-1]) + 1, self.dim
        totals = torch.zeros(count, dtype=torch.float64).index_add(0, query, weight)
        scales = self.strengths * totals[:, None] ** self.powers  # [Q, T]
        weighted = vectors * weight[:, None]
        line = torch.zeros(count, dim, dtype=torch.float64)
        line = line.index_add(0, query, weighted * (self.pull * target)[:, None])
        line = line + scales @ self.centres
        matrix = (scales @ self.matrices.flatten(1)).view(count, dim, dim)
        if self.squares:
            sizes = torch.bincount(query, minlength=count).tolist()
            groups = zip(torch.split(weighted, sizes), torch.split(vectors, sizes), strict=True)
            for query_matrix, (left, right) in zip(matrix, groups, strict=True):
                query_matrix.addmm_(left.T, right, alpha=self.squares)
        if not bool(matrix.isfinite().all()) or not bool(line.isfinite().all()):
            raise DataError("A query's weights or targets are too large; give smaller weights.")
        if self.length == "unit":
            return _on_sphere(matrix, line)
        minimum = _minimum(matrix, line)
        return minimum if self.length == "free" else _normalised(minimum)


def _minimum(matrix: Tensor, line: Tensor) -> Tensor:
    """Return the shortest minimiser of ½ uᵀA u − bᵀu for each of A [Q, D, D] and b [Q, D]."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    singular = (failed > 0) | (diagonal.amin(-1) <= SINGULAR * diagonal.amax(-1))
    solved = torch.zeros_like(line)
    regular = ~singular
    solved[regular] = torch.cholesky_solve(line[regular, :, None], factor[regular])[..., 0]
    if bool(singular.any()):
        inverse = torch.linalg.pinv(matrix[singular], rtol=SINGULAR**2, hermitian=True)
        solved[singular] = (inverse @ line[singular, :, None])[..., 0]
    return solved


def _on_sphere(matrix: Tensor, line: Tensor) -> Tensor:
    """Return the minimiser of ½ uᵀA u − bᵀu with ‖u‖ = 1.

    It is (A + μ I)⁻¹b for the unique μ above minus the smallest eigenvalue that gives this length
    (Gander, Golub and von Matt 1989). Bisection finds μ to the last bit.
    """
    values, axes = torch.linalg.eigh(matrix)
    coordinates = (axes.mT @ line[..., None])[..., 0]  # b in the eigenbasis
    size = coordinates.norm(dim=-1, keepdim=True)
    if bool((size == 0).any()):
        raise _without_direction(size)
    # At the lower end the first coordinate alone gives ‖u‖ ≥ 1; at the upper end ‖u‖ ≤ 1.
    gap = values - values[:, :1]
    low, high = coordinates[:, :1].abs(), size.clone()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        long = (coordinates / (gap + middle)).norm(dim=-1, keepdim=True) > 1
        low, high = torch.where(long, middle, low), torch.where(long, high, middle)
    solution = coordinates / (gap + high)
    # The hard case: b has no component along the first axis, and the others are too short. Either
    # sign of the first coordinate completes the length.
    missing = 1 - solution.square().sum(-1)
    solution[:, 0] = torch.where(missing > HARD, missing.clamp(min=0).sqrt(), solution[:, 0])
    return _normalised((axes @ solution[..., None])[..., 0])


def _normalised(rows: Tensor) -> Tensor:
    """Return the rows scaled to length 1. Raises: DataError: a row is zero."""
    size = rows.norm(dim=-1, keepdim=True)
    if bool((size == 0).any()):
        raise _without_direction(size)
    normalised: Tensor = rows / size
    return normalised


def _without_direction(size: Tensor) -> DataError:
    row = int((size[:, 0] == 0).nonzero()[0])
    return DataError(
        f"The vectors of the candidates of query {row + 1} add up to zero, so its own vector has "
        "no direction; add or remove a candidate."
    )
