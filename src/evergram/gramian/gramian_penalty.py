"""The penalty on all pairs as a module for your own training loop."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from evergram.errors import DataError, ShapeError, TrainingError
from evergram.gramian.entity_measure import EntityMeasure, identity_of
from evergram.gramian.estimator import EntityBatch, GramianEstimator, Moment, SampledGramian
from evergram.gramian.penalty import BatchSide, quadratic_penalty
from evergram.gramian.sogram import AdaptiveSOGram, SOGram

UNKNOWN, WITH_IDS, WITHOUT_IDS = 0, 1, 2


class PenaltySide(nn.Module):
    """One side of the penalty: the measure, the prior's factors and the Gramian estimator.

    Args:
        measure: p with its counts, and the side's name.
        factors: [N, K] by id, or [1, K] for all rows; K = 0 is the zero prior.
        estimator: of a moment [D, D + K].
    Raises: ShapeError: the numbers of entities of factors and measure differ.
    """

    def __init__(
        self, measure: EntityMeasure, factors: Tensor, estimator: GramianEstimator
    ) -> None:
        super().__init__()
        name, entities = measure.name, len(measure.counts)
        if len(factors) > 1 and entities not in (0, len(factors)):
            raise ShapeError(
                f"The prior has {len(factors)} rows of {name} factors, but {name}_counts or "
                f"{name}_measure has {entities} entities; both need one row per entity."
            )
        self.name = name
        self.measure = measure
        self.factors: Tensor = nn.Buffer(factors, persistent=False)
        width = factors.shape[1]
        # Σ μ f⊗f and Σ μ of all rows seen, for the constant of the penalty's value.
        self.prior_square: Tensor = nn.Buffer(torch.zeros(width, width, dtype=torch.float64))
        self.prior_weight: Tensor = nn.Buffer(torch.zeros((), dtype=torch.float64))
        prior = str(list(factors.shape)).encode() + factors.cpu().numpy().tobytes()
        self.prior_identity: Tensor = nn.Buffer(identity_of(prior))
        self.id_use: Tensor = nn.Buffer(torch.tensor(UNKNOWN))
        self.estimator: GramianEstimator = estimator

    @property
    def by_id(self) -> bool:
        """True if the factors depend on the id."""
        return len(self.factors) > 1

    def check_rows(self, embeddings: Tensor) -> None:
        """Raise ShapeError unless embeddings are [B, D]."""
        shape = list(embeddings.shape)
        if len(shape) != 2 or shape[1] != self.estimator.dim:
            raise ShapeError(
                f"The {self.name} embeddings have shape {shape}; this penalty takes "
                f"[batch, {self.estimator.dim}]. Flatten other dims, or create the penalty with "
                "the embeddings' dim."
            )

    def check_ids(self, ids: object, size: int) -> Tensor | None:
        """Return ids as int64 [B] on this module's device; None for None.

        Raises:
            ShapeError: ids are not integers, or not one for each row.
            DataError: an id is outside the tables.
            TrainingError: ids are missing but needed, or only some of the calls have ids.
        """
        use = WITHOUT_IDS if ids is None else WITH_IDS
        before = int(self.id_use)
        if size and before not in (UNKNOWN, use):
            now, earlier = ("without", "with") if ids is None else ("with", "without")
            raise TrainingError(
                f"This call is {now} {self.name}_ids, but earlier calls were {earlier}: the "
                "estimate would mix two measures. Give ids in every call, or in none."
            )
        if ids is None:
            by_id = self.by_id or self.measure.shares is not None or not self.measure.streamed
            if size and (by_id or self.measure.power not in (0.0, 1.0)):
                raise TrainingError(
                    f"The penalty needs {self.name}_ids, because its prior, counts or measure "
                    "depend on them."
                )
            return None
        rows = torch.as_tensor(ids, device=self.id_use.device)
        not_integers = size and (rows.is_floating_point() or rows.dtype == torch.bool)
        if rows.shape != (size,) or not_integers:
            raise ShapeError(
                f"{self.name}_ids are {rows.dtype} {list(rows.shape)}; they must be [{size}], an "
                f"integer for each row of the {self.name} embeddings."
            )
        rows = rows.long()
        self.measure.check(rows)
        if self.by_id and size and int(rows.max()) >= len(self.factors):
            raise DataError(
                f"{self.name}_ids contain {int(rows.max())}, but the prior has only "
                f"{len(self.factors)} rows; it needs one for each entity."
            )
        return rows

    def count(self, ids: Tensor | None, size: int) -> None:
        """Count a batch's entities; call this before `rows`, which uses the counts."""
        if not size:
            return
        self.id_use = torch.full_like(self.id_use, WITHOUT_IDS if ids is None else WITH_IDS)
        if ids is not None:
            self.measure.count(ids)

    def rows(
        self, embeddings: Tensor, ids: Tensor | None, *, evaluates: bool = False
    ) -> EntityBatch:
        """Return a batch's rows, detached, with their weights and factors. With `evaluates`, rows
        of all entities are weighted exactly by the measure."""
        size = len(embeddings)
        if ids is None:
            weights = embeddings.new_ones(size)
            ids = torch.arange(size, device=embeddings.device)
        else:
            exact = self.measure.exact_weights(ids) if evaluates else None
            weights = (self.measure.weights(ids) if exact is None else exact).to(embeddings)
        factors = self.factors[ids] if self.by_id else self.factors.expand(size, -1)
        return EntityBatch(ids, weights, embeddings.detach(), factors.to(embeddings))

    def learn_prior(self, rows: EntityBatch) -> None:
        """Add a batch's factors to the prior's mean."""
        if rows.factors.shape[1]:
            factors, weights = rows.factors.double(), rows.weights.double()
            self.prior_square = self.prior_square + (factors * weights[:, None]).T @ factors
            self.prior_weight = self.prior_weight + weights.sum()

    @property
    def prior_mean(self) -> Tensor:
        """Σ p f⊗f of the prior's factors, [K, K]; zero before the first batch."""
        return self.prior_square / self.prior_weight.clamp(min=1e-300)

    def fold(self, rows: EntityBatch) -> None:
        """Update the estimate from a batch; an empty batch has no effect."""
        if not len(rows.ids):
            return
        if isinstance(self.estimator, SampledGramian):
            # It stores the rows, and the caller may modify its tensor in place.
            rows = replace(rows, embeddings=rows.embeddings.clone())
        self.estimator.update(rows)

    def fold_together(self, calls: Sequence[EntityBatch]) -> None:
        """Update the estimate from several calls as one batch, weighted by all counts so far."""
        calls = [rows for rows in calls if len(rows.ids)]
        if calls:
            ids = torch.cat([rows.ids for rows in calls])
            with_ids = int(self.id_use) == WITH_IDS
            embeddings = torch.cat([rows.embeddings for rows in calls])
            self.fold(self.rows(embeddings, ids if with_ids else None))

    def moment(self, dtype: torch.dtype) -> Moment:
        """Return the estimate in this dtype."""
        moment = self.estimator.moment()
        tensors = (moment.matrix, moment.left, moment.right)
        return Moment(*(tensor if tensor is None else tensor.to(dtype) for tensor in tensors))

    def probabilities(self, size: int) -> Tensor:
        """Return p of rows 0 … size − 1, float64; uniform if there are no ids.

        Raises: ShapeError: there are fewer rows than ids seen.
        """
        if int(self.id_use) != WITH_IDS:
            return torch.full((size,), 1 / max(1, size), dtype=torch.float64)
        shares = self.measure.probabilities()
        seen = shares.nonzero()
        needed = int(seen[-1]) + 1 if len(seen) else 0
        if size < needed:
            raise ShapeError(
                f"There are {size} {self.name} rows, but ids up to {needed - 1} have been seen; "
                "row a must be the embedding of id a, for every id."
            )
        padding = shares.new_zeros(max(0, size - len(shares)))
        return torch.cat([shares[:size], padding])

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *rest: object
    ) -> None:
        identity = state_dict.get(prefix + "prior_identity")
        if identity is not None and not bool(identity == self.prior_identity):
            raise TrainingError(
                f"The state was saved with another prior ({self.name} factors); create the penalty "
                "with the same prior."
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)


def estimator_of(kind: str, dim: int, factors: int, rate: float | str) -> GramianEstimator:
    """Return an estimator that only needs the batches of the loss.

    Raises: ValueError: the kind is not available here, or the rate is not valid for it.
    """
    if kind == "sogram":
        return AdaptiveSOGram(dim, factors) if rate == "auto" else SOGram(dim, factors, rate)
    if kind != "sampled":
        raise ValueError(
            f"estimator is {kind!r}; it must be 'sogram' or 'sampled'. 'sagram' and 'exact' "
            "need embeddings beyond the batch; use them with evergram.train."
        )
    if rate != "auto":
        raise ValueError(f"rate is {rate}, but 'sampled' has no rate; leave it 'auto'.")
    return SampledGramian(dim, factors)


def prior_factors(prior: float | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return q [N, K] and r [N′, K] with π_ab = ⟨q_a, r_b⟩; N = 1 for a number, and K = 0 for zero.

    Raises: ValueError: the number is not finite. ShapeError: the tables have wrong shapes.
    """
    if not isinstance(prior, tuple | list):
        number = isinstance(prior, Real | Tensor) and not isinstance(prior, bool)
        value = torch.tensor([[float(prior) if number else math.nan]])
        if not bool(torch.isfinite(value)):
            raise ValueError(f"prior is {prior!r}; it must be a finite number, or two tables.")
        return (value, torch.ones(1, 1)) if prior else (torch.zeros(1, 0), torch.zeros(1, 0))
    tables = [torch.as_tensor(table).detach().float().clone() for table in prior]
    shapes = [list(table.shape) for table in tables]
    if (
        len(shapes) != 2
        or any(len(s) != 2 or not s[0] for s in shapes)
        or len({s[1] for s in shapes}) > 1
    ):
        raise ShapeError(
            f"The prior's tables have shapes {shapes}; they must be [N, K] for queries and "
            "[N′, K] for candidates, with the same K."
        )
    return tables[0], tables[1]


class GramianErrors(NamedTuple):
    """‖Ĝ − G‖ / ‖G‖ of each side, Frobenius norm."""

    query: float
    candidate: float


class GramianPenalty(nn.Module):
    """g = Σ_a Σ_b p_a q_b (⟨u_a, v_b⟩ − π)² over *all* pairs, from batches without negatives.

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

    *The estimate used in a gradient must not contain that gradient's own batch*, or positives would
    repel each other. A call therefore uses the Gramians of earlier batches, and then, in training
    mode, updates them with its own batch; the gradient of the first call is zero. Counts, measures,
    λ, micro-batches, half precision, state and several processes: see `docs/penalty.md`.

    **Value.** ⟨S_u, Ĝ_v⟩ + ⟨Ĝ_u, S_v⟩ − ⟨Ĝ_u, Ĝ_v⟩, with S of the batch and estimates Ĝ: g to first
    order, with the exact gradient ∇ĝ of [G2] Eq. (7); exactly g if S and Ĝ are exact. It can be
    briefly negative when embeddings shrink faster than the estimates.

    Args:
        dim: D.
        estimator: "sogram": averages of batch Gramians, 12 D² floats per side for any corpus.
            "sampled": only the last batch.
        query_measure, candidate_measure: p and q: "uniform", "example" (equal weight for every
            row), γ for p ∝ count^γ, or [N] weights by id.
        prior: π, the score of a pair about which nothing is known; or two tables by id, [N, K] for
            queries and [N′, K] for candidates, with π_ab = ⟨q_a, r_b⟩.
        query_counts, candidate_counts: [N], how often each entity (ids from 0) is drawn, up to a
            factor; for batches of training examples, their number of examples. Without them counts
            are streamed, which works with any sampler and needs no second pass over the data.
        rate: α of "sogram", in (0, 1]; "auto" keeps twelve averages and uses the best predictor.
        weight: λ, which multiplies the value.
    Shape: query [B, D], candidate [B′, D], query_ids [B], candidate_ids [B′]; returns a scalar.
    Raises:
        ValueError: a setting is out of range.
        ShapeError: embeddings or ids have a wrong shape.
        DataError: an id is outside the tables.
        TrainingError: ids are missing, or an earlier call has used the same computed embeddings.
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
        # Weak references to the embeddings of the last call; micro-batches not yet in the estimate.
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
        sides, both = (self.query, self.candidate), (query, candidate)
        for side, embeddings in zip(sides, both, strict=True):
            side.check_rows(embeddings)
        arguments = zip(sides, (query_ids, candidate_ids), both, strict=True)
        ids = [side.check_ids(side_ids, len(rows)) for side, side_ids, rows in arguments]
        wide = [e.to(torch.promote_types(e.dtype, torch.float32)) for e in both]
        self._check_own_batch(query, candidate)
        with torch.autocast(query.device.type, enabled=False):
            learning = self.training and not torch.is_inference_mode_enabled()
            # The Gramian is finite if the sum of squares, an upper bound of its entries, is finite.
            learns = learning and all(math.isfinite(w.detach().square().sum()) for w in wide)
            rows = []
            for side, w, i in zip(sides, wide, ids, strict=True):
                if learns:
                    side.count(i, len(w))
                rows.append(side.rows(w, i, evaluates=not learns))
                if learns:
                    side.learn_prior(rows[-1])
            value = self._value(wide, rows)
            if learns and self._pending is None:
                for side, r in zip(sides, rows, strict=True):
                    side.fold(r)
                self._folded = [weakref.ref(query), weakref.ref(candidate)]
            elif learns and self._pending is not None:
                for calls, r in zip(self._pending, rows, strict=True):
                    # Copy, because the caller may modify its tensor in place.
                    calls.append(replace(r, embeddings=r.embeddings.clone()))
        return self.weight * value

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Treat all calls inside the block as micro-batches of one batch and optimizer step.

        All calls use the same estimate, which is updated at the end with their embeddings; after an
        error it stays unchanged. If micro-batches have equal sizes, and counts are given or there
        are no ids, gradients and state are the same as for the whole batch in one call.

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
            raise TrainingError("accumulate() cannot be nested; use one per optimizer step.")
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
        """Return ‖Ĝ − G‖ / ‖G‖ of each side, with the exact G under the measure, in float64.

        Args:
            query, candidate: [N, D], the embeddings of all entities, row a for id a. If the penalty
                is called without ids, rows drawn as in training, the more the better.
        Raises: ShapeError: the dim is wrong, or there are fewer rows than ids.
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

    def _value(self, wide: Sequence[Tensor], rows: Sequence[EntityBatch]) -> Tensor:
        """Return the penalty's value, differentiable."""
        width = torch.promote_types(wide[0].dtype, wide[1].dtype)
        moments = self.query.moment(width), self.candidate.moment(width)
        query, candidate = map(_batch_side, wide, rows, moments, (width, width))
        value = quadratic_penalty(query, candidate)
        # ⟨Ĝ_u, Ĝ_v⟩ − 2⟨Ĥ_u, Ĥ_v⟩.
        between = (moments[0].gramian * moments[1].gramian).sum()
        between = between - 2 * (moments[0].cross * moments[1].cross).sum()
        # For a side without rows, S is taken to be Ĝ, and its term of the sum is `between`.
        value = value + (sum(not len(w) for w in wide) - 1) * between
        return value + (self.query.prior_mean * self.candidate.prior_mean).sum().to(width)

    def _check_own_batch(self, *embeddings: Tensor) -> None:
        """Raise TrainingError if the estimate already contains this batch. Leaf tensors are not
        checked, because a parameter is the same tensor in every step."""
        folded = [ref() for ref in self._folded]
        for tensor in embeddings:
            computed = tensor.requires_grad and not tensor.is_leaf and torch.is_grad_enabled()
            if computed and any(tensor is other for other in folded):
                raise TrainingError(
                    "These embeddings are already in the estimate from an earlier call, so "
                    "positives would repel each other. Call the penalty once per batch and reuse "
                    "its value, or make all calls of a step inside `with penalty.accumulate():`."
                )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GramianPenalty:
        """Move the state, never to a narrower dtype, which would lose small changes."""

        def widest(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if not tensor.is_floating_point():
                return moved
            width = torch.promote_types(tensor.dtype, moved.dtype)
            return moved if moved.dtype == width else tensor.to(moved.device, width)

        super()._apply(widest, recurse)  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        # References to embeddings are only valid in this process.
        return {**self.__dict__, "_folded": (), "_pending": None}


def _batch_side(wide: Tensor, rows: EntityBatch, moment: Moment, width: torch.dtype) -> BatchSide:
    """Return one side of a batch in this dtype; if it has no rows, a row with weight 0."""
    if len(wide):
        return BatchSide(wide.to(width), rows.weights.to(width), moment, rows.factors.to(width))
    row = wide.new_zeros(1, wide.shape[1], dtype=width) + wide.sum()
    return BatchSide(row, row.new_zeros(1), moment, row.new_zeros(1, rows.factors.shape[1]))
