"""The penalty on all pairs as a module for your own training loop."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from evergram.errors import TrainingError
from evergram.gramian.estimator import EntityBatch, Moment
from evergram.gramian.gramian_penalty.entity_measure import EntityMeasure
from evergram.gramian.gramian_penalty.penalty_side import PenaltySide, estimator_of, prior_factors
from evergram.gramian.penalty import BatchSide, quadratic_penalty


class GramianErrors(NamedTuple):
    """‖Ĝ − G‖ / ‖G‖ of each side, Frobenius norm."""

    query: float
    candidate: float


class GramianPenalty(nn.Module):
    """g = Σ_a Σ_b p_a q_b (⟨u_a, v_b⟩ − π)² over *all* pairs, from batches, without negatives.

    >>> import torch
    >>> from evergram.gramian import GramianPenalty
    >>> _ = torch.manual_seed(0)
    >>> users, items = torch.nn.Embedding(50, 8), torch.nn.Embedding(20, 8)
    >>> penalty = GramianPenalty(dim=8)
    >>> optimizer = torch.optim.Adam([*users.parameters(), *items.parameters()], lr=0.01)
    >>> for step in range(200):
    ...     a, b = torch.randint(50, (64,)), torch.randint(20, (64,))
    ...     u, v = users(a), items(b)
    ...     task = 0.5 * ((u * v).sum(1) - 1).square().mean()
    ...     loss = task + 10 * penalty(u, v, query_ids=a, candidate_ids=b)
    ...     optimizer.zero_grad()
    ...     loss.backward()
    ...     optimizer.step()
    >>> errors = penalty.gramian_error(users.weight, items.weight)
    >>> max(errors) < 0.1
    True

    *The estimate used in a gradient never contains that gradient's own batch*, or positives would
    repel each other: a call uses the Gramians of earlier batches and then, in training mode, folds
    its own batch in. So the first call pushes nothing. `docs/penalty.md` has the rest: counts and
    measures, the choice of λ, micro-batches, half precision, state and several processes.

    **Value.** ⟨S_u, Ĝ_v⟩ + ⟨Ĝ_u, S_v⟩ − ⟨Ĝ_u, Ĝ_v⟩, with S of the batch and Ĝ the estimates: g to
    first order, with the exact gradient ∇ĝ of [G2] Eq. (7), and g itself where S and Ĝ are exact.
    It may be below zero for a moment, where the estimate lags behind embeddings that shrink.

    Args:
        dim: D.
        estimator: "sogram": averages of batch Gramians, 12 D² floats a side for any corpus.
            "sampled": the last batch alone.
        query_measure, candidate_measure: p and q: "uniform", "example" (every row alike), γ for
            p ∝ count^γ, or [N] weights by id.
        prior: π, the score of a pair about which nothing is known; or two tables by id, [N, K] of
            queries and [N′, K] of candidates, for π_ab = ⟨q_a, r_b⟩.
        query_counts, candidate_counts: [N], how often each entity is drawn, up to a factor: of rows
            that are the training examples, their number. Without them counts are streamed, which
            suits any sampler and needs no second look at the data. Ids number entities from 0.
        rate: α of "sogram", in (0, 1]; "auto" keeps twelve averages and uses the best predictor.
        weight: λ, by which the value is multiplied; at 1 your loop may do so itself.
    Shape: query [B, D], candidate [B′, D], query_ids [B], candidate_ids [B′]; returns a scalar.
    Raises:
        ValueError: a setting out of its range.
        ShapeError: embeddings or ids of a wrong shape.
        DataError: an id beyond the tables.
        TrainingError: ids missing where needed, or computed embeddings that an earlier call had.
    Source: [G2] Eq. (7), Prop. 1, Algorithms 2 and 4, App. B and C.
    """

    def __init__(
        self,
        dim: int,
        estimator: str = "sogram",
        query_measure: str | float | Tensor = "uniform",
        candidate_measure: str | float | Tensor = "uniform",
        prior: float | tuple[Tensor, Tensor] = 0.0,
        *,
        query_counts: Tensor | None = None,
        candidate_counts: Tensor | None = None,
        rate: float | str = "auto",
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.weight: float = weight
        self.dim = dim
        self.settings: str = f"{dim}, estimator={estimator!r}, rate={rate!r}"
        if weight != 1:
            self.settings += f", weight={weight:g}"
        query_factors, candidate_factors = prior_factors(prior)
        self.query: PenaltySide = PenaltySide(
            EntityMeasure(query_measure, query_counts, "query"),
            query_factors,
            estimator_of(estimator, dim, query_factors.shape[1], rate),
        )
        self.candidate: PenaltySide = PenaltySide(
            EntityMeasure(candidate_measure, candidate_counts, "candidate"),
            candidate_factors,
            estimator_of(estimator, dim, candidate_factors.shape[1], rate),
        )
        # Embeddings that are in the estimate, as weak references; micro-batches that will be.
        self._folded: Sequence[weakref.ref[Tensor]] = ()
        self._pending: tuple[list[EntityBatch], list[EntityBatch]] | None = None

    @property
    def query_gramian(self) -> Tensor:
        """Ĝ_u [D, D]."""
        return self.query.estimator.gramian()

    @property
    def candidate_gramian(self) -> Tensor:
        """Ĝ_v [D, D]."""
        return self.candidate.estimator.gramian()

    def forward(
        self,
        query: Tensor,
        candidate: Tensor,
        query_ids: Tensor | None = None,
        candidate_ids: Tensor | None = None,
    ) -> Tensor:
        wide, ids = self._checked(query, candidate, query_ids, candidate_ids)
        sides = (self.query, self.candidate)
        self._check_own_batch(query, candidate)
        with torch.autocast(query.device.type, enabled=False):
            learning = self.training and not torch.is_inference_mode_enabled()
            learns = learning and all(_finite(w) for w in wide)
            if learns:
                for side, w, i in zip(sides, wide, ids, strict=True):
                    side.count(i, len(w))
            triples = zip(sides, wide, ids, strict=True)
            rows = [s.rows(w, i, evaluates=not learns) for s, w, i in triples]
            if learns:
                for side, r in zip(sides, rows, strict=True):
                    side.learn_prior(r)
            value = self._value(wide, rows)
            if learns:
                self._take(query, candidate, rows)
        return self.weight * value

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Fold all calls inside in as one batch, at the end: micro-batches of one optimiser step.

        Every call inside uses the estimate from before. Detached embeddings of all of them are held
        until the end; an error inside folds nothing in. With micro-batches of one size, and counts
        given or no ids, gradients and state are those of the whole batch in one call.

        >>> import torch
        >>> from evergram.gramian import GramianPenalty
        >>> penalty = GramianPenalty(dim=4)
        >>> users, items = torch.randn(32, 4), torch.randn(32, 4)
        >>> with penalty.accumulate():
        ...     for u, v in zip(users.split(8), items.split(8)):
        ...         loss = penalty(u, v) / 4  # and loss.backward()
        >>> torch.allclose(penalty.query_gramian, users.T @ users / 32, atol=1e-6)
        True
        """
        if self._pending is not None:
            raise TrainingError("accumulate() is open already; use one for each optimiser step.")
        pending: tuple[list[EntityBatch], list[EntityBatch]] = ([], [])
        self._pending = pending
        try:
            yield
        finally:
            self._pending = None
        with torch.autocast(self.query.id_use.device.type, enabled=False):
            for side, calls in zip((self.query, self.candidate), pending, strict=True):
                side.fold_together(calls)

    def gramian_error(self, query: Tensor, candidate: Tensor) -> GramianErrors:
        """Return ‖Ĝ − G‖ / ‖G‖ of each side, with the exact G summed in float64 under the measure.

        Args:
            query, candidate: [N, D], the embedding of every entity, row a that of id a. If the
                penalty is called without ids: rows drawn as in training, the more the better.
        Raises: ShapeError: rows of another dim, or fewer than ids.
        Source: [G2] Fig. 2.
        """
        errors = []
        for side, rows in ((self.query, query), (self.candidate, candidate)):
            side.check_rows(rows)
            shares = side.probabilities(len(rows)).to(rows.device)
            wide = rows.detach().double()
            exact = (wide * shares[:, None]).T @ wide
            estimate = side.estimator.gramian().double()
            errors.append(float((estimate - exact).norm() / exact.norm().clamp(min=1e-300)))
        return GramianErrors(*errors)

    def extra_repr(self) -> str:
        return self.settings

    def _checked(
        self,
        query: Tensor,
        candidate: Tensor,
        query_ids: Tensor | None,
        candidate_ids: Tensor | None,
    ) -> tuple[list[Tensor], tuple[Tensor | None, Tensor | None]]:
        """Return embeddings in float32 or wider, and ids. Raises: as `forward`."""
        self.query.check_rows(query)
        self.candidate.check_rows(candidate)
        ids = (
            self.query.check_ids(query_ids, len(query)),
            self.candidate.check_ids(candidate_ids, len(candidate)),
        )
        both = (query, candidate)
        return [e.to(torch.promote_types(e.dtype, torch.float32)) for e in both], ids

    def _value(self, wide: Sequence[Tensor], rows: Sequence[EntityBatch]) -> Tensor:
        """The value, with the graph of its gradient."""
        width = torch.promote_types(wide[0].dtype, wide[1].dtype)
        moments = self.query.moment(width), self.candidate.moment(width)
        query, candidate = map(_batch_side, wide, rows, moments, (width, width))
        value = quadratic_penalty(query, candidate)
        between = _between(*moments)
        # A side without rows is taken to be as its estimate: its part of the sum is `between`.
        value = value + (sum(not len(w) for w in wide) - 1) * between
        return value + (self.query.prior_mean * self.candidate.prior_mean).sum().to(width)

    def _take(self, query: Tensor, candidate: Tensor, rows: Sequence[EntityBatch]) -> None:
        """Fold a call's batch in, or hold it until the micro-batches of its step are complete."""
        if self._pending is None:
            for side, of_side in zip((self.query, self.candidate), rows, strict=True):
                side.fold(of_side)
            self._folded = [weakref.ref(query), weakref.ref(candidate)]
            return
        for held, of_side in zip(self._pending, rows, strict=True):
            # A copy: the caller's tensor may change before the end.
            held.append(replace(of_side, embeddings=of_side.embeddings.clone()))

    def _check_own_batch(self, *embeddings: Tensor) -> None:
        """Refuse a gradient whose estimate contains its own batch. Raises: TrainingError.

        It looks only at results of a graph: a parameter is the same tensor in every step.
        """
        folded = [ref() for ref in self._folded]
        for tensor in embeddings:
            computed = tensor.requires_grad and not tensor.is_leaf and torch.is_grad_enabled()
            if computed and any(tensor is other for other in folded):
                raise TrainingError(
                    "These embeddings are in the estimate already: an earlier call has folded "
                    "them in, and positives would repel each other. Call the penalty once a "
                    "batch and keep its value, or make all calls of one step inside "
                    "`with penalty.accumulate():`."
                )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GramianPenalty:
        """Move the state; never to a narrower width, in which small changes would be lost."""

        def widest(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if not tensor.is_floating_point():
                return moved
            width = torch.promote_types(tensor.dtype, moved.dtype)
            return moved if moved.dtype == width else tensor.to(moved.device, width)

        super()._apply(widest, recurse)  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process or of another time has no embeddings of this one.
        return {**self.__dict__, "_folded": (), "_pending": None}


def _batch_side(wide: Tensor, rows: EntityBatch, moment: Moment, width: torch.dtype) -> BatchSide:
    """Return the terms of one side in this dtype; without rows, one row of weight 0."""
    if len(wide):
        return BatchSide(wide.to(width), rows.weights.to(width), moment, rows.factors.to(width))
    row = wide.new_zeros(1, wide.shape[1], dtype=width) + wide.sum()
    return BatchSide(row, row.new_zeros(1), moment, row.new_zeros(1, rows.factors.shape[1]))


def _between(query: Moment, candidate: Moment) -> Tensor:
    """⟨Ĝ_u, Ĝ_v⟩ − 2⟨Ĥ_u, Ĥ_v⟩."""
    value = (query.gramian * candidate.gramian).sum()
    return value - 2 * (query.cross * candidate.cross).sum()


def _finite(rows: Tensor) -> bool:
    """Return True if a batch's Gramian is finite: no entry exceeds the sum of squares."""
    return bool(torch.isfinite(rows.detach().square().sum()))
