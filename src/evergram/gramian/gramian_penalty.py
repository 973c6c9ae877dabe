"""The penalty on all pairs as a module for your own training loop; the state of each side."""

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
    """The measure, the prior's factors and the Gramian of the queries, or of the candidates.

    Args:
        measure: p, the counts that it needs, and the side's name.
        factors: [N, K] by id, or [1, K] for every row alike; K = 0 is the zero prior.
        estimator: of a moment [D, D + K].
    Raises: ShapeError: the factors are of other entities than the measure.
    """

    def __init__(
        self, measure: EntityMeasure, factors: Tensor, estimator: GramianEstimator
    ) -> None:
        super().__init__()
        name, entities = measure.name, len(measure.counts)
        if len(factors) > 1 and entities not in (0, len(factors)):
            raise ShapeError(
                f"The prior has {len(factors)} rows of {name} factors, and {name}_counts or "
                f"{name}_measure {entities} entities; each needs one row an entity."
            )
        self.name = name
        self.measure = measure
        self.factors: Tensor
        self.prior_square: Tensor
        self.prior_weight: Tensor
        self.prior_identity: Tensor
        self.id_use: Tensor
        self.register_buffer("factors", factors, persistent=False)
        width = factors.shape[1]
        # Σ μ f⊗f and Σ μ of all rows seen: the constant of the penalty's value needs their mean.
        self.register_buffer("prior_square", torch.zeros(width, width, dtype=torch.float64))
        self.register_buffer("prior_weight", torch.zeros((), dtype=torch.float64))
        prior = str(list(factors.shape)).encode() + factors.cpu().numpy().tobytes()
        self.register_buffer("prior_identity", identity_of(prior))
        self.register_buffer("id_use", torch.tensor(UNKNOWN))
        self.estimator: GramianEstimator = estimator

    @property
    def by_id(self) -> bool:
        """True if the factors are a table by id."""
        return len(self.factors) > 1

    def check_rows(self, embeddings: Tensor) -> None:
        """Check that embeddings are [B, D]. Raises: ShapeError."""
        shape = list(embeddings.shape)
        if len(shape) != 2 or shape[1] != self.estimator.dim:
            raise ShapeError(
                f"The {self.name} embeddings have shape {shape}; this penalty takes "
                f"[batch, {self.estimator.dim}], one row an entity. Flatten other dims, or make it "
                "with the embeddings' own dim."
            )

    def check_ids(self, ids: object, size: int) -> Tensor | None:
        """Return ids as int64 [B] on this module's device; None for None.

        Raises:
            ShapeError: ids are not integers, or not one for each row.
            DataError: an id lies beyond the tables.
            TrainingError: earlier calls had ids and this one has none, or the reverse.
        """
        use = WITHOUT_IDS if ids is None else WITH_IDS
        before = int(self.id_use)
        if size and before not in (UNKNOWN, use):
            now, then = ("without", "with") if ids is None else ("with", "without")
            raise TrainingError(
                f"This call is {now} {self.name}_ids, earlier ones were {then}: the estimate would "
                "mix two measures. Give ids in every call, or in none."
            )
        if ids is None:
            by_id = self.by_id or self.measure.shares is not None or not self.measure.streamed
            if size and (by_id or self.measure.power not in (0.0, 1.0)):
                raise TrainingError(
                    f"The penalty needs {self.name}_ids, for its prior, its counts or its measure "
                    "is by entity."
                )
            return None
        rows = torch.as_tensor(ids, device=self.id_use.device)
        no_ids = size and (rows.is_floating_point() or rows.dtype == torch.bool)
        if rows.shape != (size,) or no_ids:
            raise ShapeError(
                f"{self.name}_ids are {rows.dtype} {list(rows.shape)}; they must be [{size}], an "
                f"integer for each row of the {self.name} embeddings."
            )
        rows = rows.long()
        self.measure.check(rows)
        if self.by_id and size and int(rows.max()) >= len(self.factors):
            raise DataError(
                f"{self.name}_ids contain {int(rows.max())}, and the prior has "
                f"{len(self.factors)} rows; it needs one for each entity."
            )
        return rows

    def count(self, ids: Tensor | None, size: int) -> None:
        """Count a batch's entities; call it before `rows`, which weights them."""
        if not size:
            return
        self.id_use = torch.full_like(self.id_use, WITHOUT_IDS if ids is None else WITH_IDS)
        if ids is not None:
            self.measure.count(ids)

    def rows(
        self, embeddings: Tensor, ids: Tensor | None, *, evaluates: bool = False
    ) -> EntityBatch:
        """Return a batch's rows, detached, with the weights and factors of their ids.

        Args:
            evaluates: True weights rows that hold every entity by the measure itself, whether or
                not they were drawn as in training.
        """
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
        """Add a batch's factors to the prior's mean, of which no gradient is taken."""
        if rows.factors.shape[1]:
            factors, weights = rows.factors.double(), rows.weights.double()
            self.prior_square = self.prior_square + (factors * weights[:, None]).T @ factors
            self.prior_weight = self.prior_weight + weights.sum()

    @property
    def prior_mean(self) -> Tensor:
        """Σ p f⊗f of the prior's factors, [K, K]; zero before any row."""
        return self.prior_square / self.prior_weight.clamp(min=1e-300)

    def fold(self, rows: EntityBatch) -> None:
        """Fold a batch into the estimate; an empty one changes nothing."""
        if not len(rows.ids):
            return
        if isinstance(self.estimator, SampledGramian):
            # It keeps the rows, and the caller's tensor may change in place.
            rows = replace(rows, embeddings=rows.embeddings.clone())
        self.estimator.update(rows)

    def fold_together(self, calls: Sequence[EntityBatch]) -> None:
        """Fold the rows of several calls in as one batch, weighted by all counts so far."""
        some = [rows for rows in calls if len(rows.ids)]
        if some:
            ids = torch.cat([rows.ids for rows in some])
            by_id = int(self.id_use) == WITH_IDS
            embeddings = torch.cat([rows.embeddings for rows in some])
            self.fold(self.rows(embeddings, ids if by_id else None))

    def moment(self, dtype: torch.dtype) -> Moment:
        """Return the estimate in this dtype."""
        moment = self.estimator.moment()
        parts = (moment.matrix, moment.left, moment.right)
        return Moment(*(part if part is None else part.to(dtype) for part in parts))

    def probabilities(self, size: int) -> Tensor:
        """Return p of rows 0 … size − 1, float64; without ids every row has the same.

        Raises: ShapeError: an id that has been seen has no row.
        """
        if int(self.id_use) != WITH_IDS:
            return torch.full((size,), 1 / max(1, size), dtype=torch.float64)
        shares = self.measure.probabilities()
        known = shares.nonzero()
        needed = int(known[-1]) + 1 if len(known) else 0
        if size < needed:
            raise ShapeError(
                f"There are {size} {self.name} rows, and ids up to {needed - 1} have been seen; "
                "row a must be the embedding of id a, for every id."
            )
        room = shares.new_zeros(max(0, size - len(shares)))
        return torch.cat([shares[:size], room])

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *rest: object
    ) -> None:
        identity = state_dict.get(prefix + "prior_identity")
        if identity is not None and not bool(identity == self.prior_identity):
            raise TrainingError(
                f"The state is of another prior than this penalty's, by its {self.name} factors; "
                "make the penalty with the prior that it had when the state was saved."
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)


def estimator_of(kind: str, dim: int, factors: int, rate: float | str) -> GramianEstimator:
    """Return an estimator that learns from the batches of a loss alone.

    Raises: ValueError: the kind needs more than that or has no rate, or the rate is out of range.
    """
    if kind == "sogram":
        return AdaptiveSOGram(dim, factors) if rate == "auto" else SOGram(dim, factors, rate)
    if kind != "sampled":
        raise ValueError(
            f"estimator is {kind!r}; it must be 'sogram' or 'sampled'. 'storm', 'sagram' and "
            "'exact' embed other entities or parameters than those of a batch; evergram.train has "
            "them."
        )
    if rate != "auto":
        raise ValueError(f"rate is {rate}, and 'sampled' has none; leave it 'auto'.")
    return SampledGramian(dim, factors)


def prior_factors(prior: float | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return q [N, K] and r [N′, K] with π_ab = ⟨q_a, r_b⟩; N = 1 for a number, and K = 0 for zero.

    Raises: ValueError: the number is not finite. ShapeError: the tables do not fit together.
    """
    if not isinstance(prior, tuple | list):
        number = isinstance(prior, Real | Tensor) and not isinstance(prior, bool)
        value = torch.tensor([[float(prior) if number else math.nan]])
        if not bool(torch.isfinite(value)):
            raise ValueError(f"prior is {prior!r}; it must be a finite score, or two tables.")
        return (value, torch.ones(1, 1)) if prior else (torch.zeros(1, 0), torch.zeros(1, 0))
    tables = [torch.as_tensor(table).detach().float().clone() for table in prior]
    shapes = [list(table.shape) for table in tables]
    if (
        len(shapes) != 2
        or any(len(s) != 2 or not s[0] for s in shapes)
        or len({s[1] for s in shapes}) > 1
    ):
        raise ShapeError(
            f"The prior's tables have shapes {shapes}; they must be [N, K] of the queries and "
            "[N′, K] of the candidates, with one K."
        )
    return tables[0], tables[1]


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
        sides, both = (self.query, self.candidate), (query, candidate)
        for side, embeddings in zip(sides, both, strict=True):
            side.check_rows(embeddings)
        given = zip(sides, (query_ids, candidate_ids), both, strict=True)
        ids = [side.check_ids(one, len(rows)) for side, one, rows in given]
        wide = [e.to(torch.promote_types(e.dtype, torch.float32)) for e in both]
        self._check_own_batch(query, candidate)
        with torch.autocast(query.device.type, enabled=False):
            learning = self.training and not torch.is_inference_mode_enabled()
            # A Gramian is finite if the sum of squares, which no entry exceeds, is.
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
                for held, r in zip(self._pending, rows, strict=True):
                    # A copy: the caller's tensor may change before the end.
                    held.append(replace(r, embeddings=r.embeddings.clone()))
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

    def _value(self, wide: Sequence[Tensor], rows: Sequence[EntityBatch]) -> Tensor:
        """The value, with the graph of its gradient."""
        width = torch.promote_types(wide[0].dtype, wide[1].dtype)
        moments = self.query.moment(width), self.candidate.moment(width)
        query, candidate = map(_batch_side, wide, rows, moments, (width, width))
        value = quadratic_penalty(query, candidate)
        # ⟨Ĝ_u, Ĝ_v⟩ − 2⟨Ĥ_u, Ĥ_v⟩.
        between = (moments[0].gramian * moments[1].gramian).sum()
        between = between - 2 * (moments[0].cross * moments[1].cross).sum()
        # A side without rows is taken to be as its estimate: its part of the sum is `between`.
        value = value + (sum(not len(w) for w in wide) - 1) * between
        return value + (self.query.prior_mean * self.candidate.prior_mean).sum().to(width)

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
