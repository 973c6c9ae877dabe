"""The interface of Gramian estimators, the sums that they share, and the two without an average: of
all entities, and of the last batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evergram.collectives import ALONE, Collectives


class HostBuffers(nn.Module):
    """A module some of whose buffers stay where they are when it moves to a device.

    A step counter on a GPU would stop the processor at each `if`, until the GPU has done all that
    was asked of it before.

    Attributes:
        on_host: names of these buffers; numbers of no dims, which a device takes as arguments.
    """

    on_host: tuple[str, ...] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        kept = {name: getattr(self, name) for name in self.on_host}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in kept.items():
            setattr(self, name, buffer)
        return self


# Every entity's embedding, its share of the measure and its factors, in blocks:
# ([b, D], [b], [b, K]).
Population = Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]]


@dataclass(frozen=True)
class EntityBatch:
    """One side of a batch, as estimators learn from it.

    Args:
        ids: int64 [B], rows of the corpus.
        weights: [B], μ with E[(1/B) Σ μ u⊗u] = G; the sampler of the ids gives them.
        embeddings: [B, D], detached.
        factors: [B, K], fixed numbers of each entity: its row of the prior, and 1 where the mean
            is wanted. K = 0 is the plain Gramian.
        before: [B, D], the same entities before the parameters' last step, for estimators with
            `wants_before`.
        collectives: of the processes that share a batch between them; each has some of its rows.
        whole_size: the rows of that whole batch; None where these are all.
        moment: S_B [D, D + K], where the penalty has made it already; see `batch_moment`.
    """

    ids: Tensor
    weights: Tensor
    embeddings: Tensor
    factors: Tensor
    before: Tensor | None = None
    collectives: Collectives = ALONE
    whole_size: int | None = None
    moment: Tensor | None = None

    @property
    def size(self) -> int:
        """B of the whole batch, of which these rows may be one process's share."""
        return len(self.ids) if self.whole_size is None else self.whole_size

    def whole(self) -> EntityBatch:
        """Return the whole batch, gathered from all processes: B × (D + K) floats and more."""
        if self.whole_size is None:
            return self
        parts = (self.ids, self.weights, self.embeddings, self.factors)
        ids, weights, embeddings, factors = (
            self.collectives.rows(part, self.size, "Gramians' rows") for part in parts
        )
        return EntityBatch(ids, weights, embeddings, factors)


@dataclass(frozen=True)
class Moment:
    """M = Σ_a p_a u_a ⊗ (u_a, f_a): the Gramian G [D, D] and, beside it, H [D, K].

    It is one matrix ([G2] Eq. 14), or the pairs of a small batch, M = leftᵀ right (Eq. 13), where
    that is cheaper to multiply by.

    Args:
        matrix: [D, D + K]; or None, and then
        left, right: [C, D] (weighted) and [C, D + K].
    """

    matrix: Tensor | None
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
        """[D, D + K]."""
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
        """Return G u for each row u of `embeddings` [B, D], as [B, D]."""
        if self.matrix is not None:
            return embeddings @ self.matrix.detach()[:, : len(self.matrix)]
        assert self.left is not None
        assert self.right is not None
        dim = self.left.shape[1]
        return (embeddings @ self.right[:, :dim].T) @ self.left

    def pull(self, factors: Tensor) -> Tensor:
        """Return H f for each row f of `factors` [B, ≤ K], as [B, D], by H's first columns."""
        width = factors.shape[1]
        if self.matrix is not None:
            return factors @ self.cross[:, :width].T
        assert self.left is not None
        assert self.right is not None
        dim = self.left.shape[1]
        return (factors @ self.right[:, dim : dim + width].T) @ self.left


class GramianEstimator(HostBuffers, ABC):
    """An estimate of M = Σ_a p_a u_a ⊗ (u_a, f_a) [D, D + K], kept while the embeddings move.

    *The estimate used in a gradient must not contain that gradient's own batch*: [G2] Prop. 1 asks
    for independence, and without it observed pairs repel each other. Two orders keep to it. Either
    `begin`, the gradient with `moment()`, the optimiser, and `update` with the gradient's batch,
    which is then part of the next step's estimate (`GramianPenalty`, and `Step` by default). Or
    `update` with a batch drawn apart, and then the gradient (the papers); an estimator with
    `wants_after` takes this order alone, and `after_step` ends it. All state is in buffers.

    Source: docs/method.md, "Which batch".

    Args:
        dim: D.
        factors: K.
    """

    # True if `update` reads `EntityBatch.before`.
    wants_before = False
    # True if `after_step` reads what a step has moved.
    wants_after = False
    # True if the estimate covers every entity as it is in this step.
    exact = False

    def __init__(self, dim: int, factors: int = 0) -> None:
        super().__init__()
        self.dim = dim
        self.matrix: Tensor
        self.register_buffer("matrix", torch.zeros(dim, dim + factors))

    def begin(self, population: Population) -> None:
        """Prepare for a step; estimators that need every entity iterate over `population`."""

    @abstractmethod
    def update(self, rows: EntityBatch) -> None:
        """Learn from a batch."""

    def after_step(self, rows: EntityBatch) -> None:
        """Learn the embeddings of the gradient's batch at the new parameters; weights and `before`
        are not read."""

    def moment(self) -> Moment:
        """Return the estimate, detached; it is never modified in place afterwards."""
        return Moment(self.matrix)

    def gramian(self) -> Tensor:
        """Return Ĝ [D, D]."""
        return self.moment().gramian

    @property
    def state_bytes(self) -> int:
        """Bytes of state kept between steps."""
        return sum(b.numel() * b.element_size() for b in self.buffers())


def batch_moment(rows: EntityBatch, embeddings: Tensor | None = None) -> Tensor:
    """Return S_B = (1/B) Σ_a μ_a u_a ⊗ (u_a, f_a) of the whole batch, [D, D + K].

    Args:
        embeddings: [B, D], used instead of the batch's own; None uses the batch's own.
    """
    if embeddings is None and rows.moment is not None:
        return rows.moment
    with torch.no_grad():
        u = rows.embeddings if embeddings is None else embeddings
        weighted = u * (rows.weights / rows.size)[:, None]
        return rows.collectives.sum(weighted.T @ beside(u, rows.factors), "Gramians")


def batch_noise(rows: EntityBatch, moment: Tensor, *, pairs: bool = False) -> Tensor:
    """Return E‖S_B − E S_B‖², a float64 scalar, from how the rows of one batch differ.

    A row's matrix has rank one and its norm needs no product: O(B D). A movement that all rows
    share, as of a whole tower, is no noise and does not count.

    Args:
        moment: S_B; with `pairs`, S_B(θ_t) − S_B(θ_{t−1}).
        pairs: return the noise of that difference.
    """
    with torch.no_grad():
        u, f, before = rows.embeddings, rows.factors, rows.before
        norms = _own_square(u, f)
        if pairs:
            assert before is not None
            norms = norms + _own_square(before, f) - 2 * _square(u, before, f)
        size = rows.size
        total = (norms.double() * rows.weights.double().square()).sum()
        spread = rows.collectives.sum(total, "Gramians") / size
        noise = (spread - moment.double().square().sum()) / max(1, size - 1)
        return noise.clamp(min=0)


def _square(one: Tensor, other: Tensor, factors: Tensor) -> Tensor:
    """⟨a ⊗ (a, f), b ⊗ (b, f)⟩ of each row, [B]."""
    inner = (one * other).sum(1)
    return inner * (inner + factors.square().sum(1))


def _own_square(one: Tensor, factors: Tensor) -> Tensor:
    """‖a ⊗ (a, f)‖² of each row, [B]; the norm in one pass over the rows."""
    inner: Tensor = torch.linalg.vector_norm(one, dim=1).square()
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
            part = (wide * share.to(wide)[:, None]).T @ right
            total = part if total is None else total + part
    if total is None:
        raise ValueError("The population is empty; a Gramian needs at least one entity.")
    return total


def projected(matrix: Tensor) -> Tensor:
    """Return M with its Gramian [D, D] projected onto the positive semi-definite matrices.

    A Gramian that passes Cholesky's test is returned as it is: the test costs a tenth of the
    eigendecomposition.
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
    """One pass over every entity before each step: O(N D²), no staleness and no noise."""

    exact = True

    def begin(self, population: Population) -> None:
        self.matrix: Tensor = exact_moment(population).to(self.matrix)

    def update(self, rows: EntityBatch) -> None:
        """Do nothing: `begin` has seen every entity."""


class SampledGramian(GramianEstimator):
    """Ĝ = S_B, unbiased, with all of a batch's variance, as negative sampling has it. [G2] §3.3.

    The penalty with it is that of the pairs of two batches (Eq. 13). A batch of at least D rows is
    folded into a matrix (Eq. 14, O(B D²)); a smaller one is kept as it is, and multiplying by it
    goes through its rows (O(B² D)). The two give the same numbers.

    Args:
        form: "gramian", "pairs", or "auto": the cheaper, by batch size and dim.
    """

    def __init__(self, dim: int, factors: int = 0, form: str = "auto") -> None:
        super().__init__(dim, factors)
        self.form = form
        # The rows of a small batch; their number is the batch's, so they are set on loading.
        self.left: Tensor
        self.right: Tensor
        self.register_buffer("left", torch.zeros(0, dim))
        self.register_buffer("right", torch.zeros(0, dim + factors))

    def update(self, rows: EntityBatch) -> None:
        pairs = self.form == "pairs" or (self.form == "auto" and rows.size < self.dim)
        if not pairs:
            self.matrix: Tensor = batch_moment(rows).to(self.matrix)
            # A smaller batch may have been before this one.
            self.left, self.right = self.left[:0], self.right[:0]
            return
        rows = rows.whole()  # with "auto" these are less than D² floats
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
