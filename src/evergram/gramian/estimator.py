"""The interface of Gramian estimators, their common sums, and the two simplest estimators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evergram.collectives import ALONE, Collectives


class HostBuffers(nn.Module):
    """A module that keeps some buffers on the CPU when it moves to a device.

    With a step counter on a GPU, every `if` would wait for all queued GPU work.

    Attributes:
        on_host: names of these buffers; scalars, which GPU operations accept as arguments.
    """

    on_host: tuple[str, ...] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        host_buffers = {name: getattr(self, name) for name in self.on_host}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in host_buffers.items():
            setattr(self, name, buffer)
        return self


# Returns blocks of all entities' embeddings [b, D], weights in the measure [b] and factors [b, K].
Population = Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]]


@dataclass(frozen=True)
class EntityBatch:
    """One side of a batch, the input of estimators.

    Args:
        ids: int64 [B], rows of the corpus.
        weights: [B], μ such that E[(1/B) Σ μ u⊗u] = G, from the sampler of the ids.
        embeddings: [B, D], detached.
        factors: [B, K], constants of each entity, its factors of the prior; K = 0 without one.
        collectives: of the processes that share the batch; each has some of its rows.
        whole_size: number of rows in the whole batch; None if these are all.
        moment: S_B [D, D + K] if the penalty has already computed it, see `batch_moment`.
    """

    ids: Tensor
    weights: Tensor
    embeddings: Tensor
    factors: Tensor
    collectives: Collectives = ALONE
    whole_size: int | None = None
    moment: Tensor | None = None

    @property
    def size(self) -> int:
        """The number of rows in the whole batch, over all processes."""
        return len(self.ids) if self.whole_size is None else self.whole_size

    def whole(self) -> EntityBatch:
        """Return the whole batch, gathered from all processes; this exchanges all rows."""
        if self.whole_size is None:
            return self
        tensors = (self.ids, self.weights, self.embeddings, self.factors)
        ids, weights, embeddings, factors = (
            self.collectives.rows(tensor, self.size, "Gramians' rows") for tensor in tensors
        )
        return EntityBatch(ids, weights, embeddings, factors)


@dataclass(frozen=True)
class Moment:
    """M = Σ_a p_a u_a ⊗ (u_a, f_a): the Gramian G [D, D], followed by H [D, K].

    It is stored as a matrix ([G2] Eq. 14), or for a small batch as factors, M = leftᵀ right
    (Eq. 13), if multiplying by these is cheaper."""

    matrix: Tensor | None  # [D, D + K]; None if the factors are given
    # [C, D] (weighted) and [C, D + K]
    left: Tensor | None = None
    right: Tensor | None = None

    @property
    def dim(self) -> int:
        """D."""
        if self.matrix is not None:
            return len(self.matrix)
        assert self.left is not None
        return self.left.shape[1]

    @property
    def dense(self) -> Tensor:
        """M [D, D + K]."""
        if self.matrix is not None:
            return self.matrix
        assert self.left is not None
        assert self.right is not None
        return self.left.T @ self.right

    @property
    def gramian(self) -> Tensor:
        """G [D, D]."""
        dense = self.dense
        return dense[:, : len(dense)]

    @property
    def cross(self) -> Tensor:
        """H [D, K]."""
        dense = self.dense
        return dense[:, len(dense) :]

    def push(self, embeddings: Tensor) -> Tensor:
        """Return G u for rows u of `embeddings` [B, D], as [B, D]."""
        if self.matrix is not None:
            return embeddings @ self.matrix.detach()[:, : len(self.matrix)]
        assert self.left is not None
        assert self.right is not None
        dim = self.left.shape[1]
        return (embeddings @ self.right[:, :dim].T) @ self.left

    def pull(self, factors: Tensor) -> Tensor:
        """Return H f for rows f of `factors` [B, ≤ K], as [B, D], using H's first columns."""
        width = factors.shape[1]
        if self.matrix is not None:
            return factors @ self.cross[:, :width].T
        assert self.left is not None
        assert self.right is not None
        dim = self.left.shape[1]
        return (factors @ self.right[:, dim : dim + width].T) @ self.left


class GramianEstimator(HostBuffers, ABC):
    """Estimates M = Σ_a p_a u_a ⊗ (u_a, f_a) [D, D + K] while the embeddings change.

    *The estimate used in a gradient must not contain that gradient's own batch*: [G2] Prop. 1
    requires independence, without which observed pairs repel each other. There are two orders. By
    default, as in `GramianPenalty`: `begin`, the gradient with `moment()`, the optimizer, then
    `update` with the gradient's batch, which enters the next step's estimate. As in the papers:
    `begin`, `update` with a separate draw, the gradient, the optimizer, then `after_step`. An
    estimator with `wants_after` only supports the second. All state is in buffers.

    Source: docs/method.md, "Which batch".

    Args:
        dim: D.
        factors: K.
    """

    # True if the estimator needs `after_step`.
    wants_after = False
    # True if the estimate is the exact moment at the current parameters.
    exact = False

    def __init__(self, dim: int, factors: int = 0) -> None:
        super().__init__()
        self.dim = dim
        self.matrix: Tensor = nn.Buffer(torch.zeros(dim, dim + factors))

    def begin(self, population: Population) -> None:
        """Prepare for a step; estimators that need all entities iterate over `population()`."""

    @abstractmethod
    def update(self, rows: EntityBatch) -> None:
        """Update the estimate from a batch."""

    def after_step(self, rows: EntityBatch) -> None:
        """Update from the gradient's batch at the new parameters; its weights are not used."""

    def moment(self) -> Moment:
        """Return the estimate, detached; it is not modified in place afterwards."""
        return Moment(self.matrix)

    def gramian(self) -> Tensor:
        """Return Ĝ [D, D]."""
        return self.moment().gramian

    @property
    def state_bytes(self) -> int:
        """Bytes of state kept between steps."""
        return sum(b.numel() * b.element_size() for b in self.buffers())


def batch_moment(rows: EntityBatch, embeddings: Tensor | None = None) -> Tensor:
    """Return S_B = (1/B) Σ_a μ_a u_a ⊗ (u_a, f_a) of the whole batch, [D, D + K]; of `embeddings`
    [B, D] instead of the batch's if given."""
    if embeddings is None and rows.moment is not None:
        return rows.moment
    with torch.no_grad():
        u = rows.embeddings if embeddings is None else embeddings
        weighted = u * (rows.weights / rows.size)[:, None]
        return rows.collectives.sum(weighted.T @ beside(u, rows.factors), "Gramians")


def batch_noise(rows: EntityBatch, moment: Tensor) -> Tensor:
    """Estimate E‖S_B − E S_B‖², a float64 scalar, from the variance within one batch.

    Norms of the rows' rank-one matrices cost O(B D). A movement common to all rows, as of a whole
    tower, is not noise and does not count.
    """
    with torch.no_grad():
        norms, size = _squared_norm(rows.embeddings, rows.factors), rows.size
        total = (norms.double() * rows.weights.double().square()).sum()
        spread = rows.collectives.sum(total, "Gramians") / size
        noise = (spread - moment.double().square().sum()) / max(1, size - 1)
        return noise.clamp(min=0)


def _squared_norm(a: Tensor, factors: Tensor) -> Tensor:
    """Return ‖a ⊗ (a, f)‖² for each row, [B]."""
    inner: Tensor = torch.linalg.vector_norm(a, dim=1).square()
    return inner * (inner + factors.square().sum(1)) if factors.shape[1] else inner.square()


def beside(embeddings: Tensor, factors: Tensor) -> Tensor:
    """Return (u, f) for each row, [B, D + K]."""
    return torch.cat([embeddings, factors], dim=1) if factors.shape[1] else embeddings


def exact_moment(population: Population) -> Tensor:
    """Return M = Σ_a p_a u_a ⊗ (u_a, f_a), [D, D + K], summed in float64 over every entity.

    Raises: ValueError: there is no entity.
    """
    total: Tensor | None = None
    with torch.no_grad():
        for embeddings, share, factors in population():
            wide = embeddings.double()
            right = beside(wide, factors.to(wide))
            block = (wide * share.to(wide)[:, None]).T @ right
            total = block if total is None else total + block
    if total is None:
        raise ValueError("The population is empty; a Gramian needs at least one entity.")
    return total


def projected(matrix: Tensor) -> Tensor:
    """Return M with its Gramian [D, D] projected onto the positive semi-definite matrices.

    If Cholesky succeeds, at a tenth of the cost of an eigendecomposition, it is only symmetrised.
    """
    dim = len(matrix)
    square = matrix[:, :dim]
    square = (square + square.T) / 2
    _, failed = torch.linalg.cholesky_ex(square)
    if int(failed):
        values, vectors = torch.linalg.eigh(square)
        square = (vectors * values.clamp(min=0)) @ vectors.T
        square = (square + square.T) / 2
    return torch.cat([square, matrix[:, dim:]], dim=1)


class ExactGramian(GramianEstimator):
    """The exact moment, from a pass over all entities before each step: O(N D²)."""

    exact = True

    def begin(self, population: Population) -> None:
        self.matrix: Tensor = exact_moment(population).to(self.matrix)

    def update(self, rows: EntityBatch) -> None:
        """Do nothing; `begin` has computed the moment."""


class SampledGramian(GramianEstimator):
    """Ĝ = S_B of the last batch, unbiased, with the variance of one batch as in negative sampling.

    With it, the penalty is over the pairs of two batches ([G2] §3.3, Eq. 13). A batch of at least D
    rows is stored as a matrix (Eq. 14, O(B D²)), a smaller one as its rows (O(B² D)); the results
    are the same.

    Args:
        form: "gramian", "pairs", or "auto": the cheaper one.
    """

    def __init__(self, dim: int, factors: int = 0, form: str = "auto") -> None:
        super().__init__(dim, factors)
        self.form = form
        # The rows of a small batch; their number varies, so loading a state resizes them.
        self.left: Tensor = nn.Buffer(torch.zeros(0, dim))
        self.right: Tensor = nn.Buffer(torch.zeros(0, dim + factors))

    def update(self, rows: EntityBatch) -> None:
        pairs = self.form == "pairs" or (self.form == "auto" and rows.size < self.dim)
        if not pairs:
            self.matrix: Tensor = batch_moment(rows).to(self.matrix)
            # The previous batch may have been stored as rows.
            self.left, self.right = self.left[:0], self.right[:0]
            return
        rows = rows.whole()  # with "auto", fewer than D² floats
        self.left = (rows.embeddings * (rows.weights / len(rows.ids))[:, None]).to(self.matrix)
        self.right = beside(rows.embeddings, rows.factors).to(self.matrix)

    def moment(self) -> Moment:
        if len(self.left):
            return Moment(None, self.left, self.right)
        return Moment(self.matrix)

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *rest: object
    ) -> None:
        for name in ("left", "right"):
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name]).to(self.matrix))
        super()._load_from_state_dict(state_dict, prefix, *rest)
