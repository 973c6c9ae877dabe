"""One training step, in the order that the Gramian estimators require, shared among processes.

Gradients are summed over processes, so the losses of all processes add up to the batch's loss. A
mean over a process's share of the rows is multiplied by that share; a term that all P processes
compute is divided by P.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from evergram.collectives import ALONE, Collectives
from evergram.data.sampling import Batch, Draw, Pool
from evergram.encoders.encoder import ROWS, SIDES, Embeddings, Encoder, Factorization, Scene
from evergram.gramian.estimator import EntityBatch, GramianEstimator, Moment, Population
from evergram.gramian.penalty import contributions, preconditioner
from evergram.tasks.task import Encoded, Loss, Moments, Objective, WeightedRows
from evergram.training.joint import JointAlignment
from evergram.training.optimizers import decay_rates

Rows = TypeVar("Rows", Batch, Draw, Tensor)


@dataclass(frozen=True)
class Shard(Generic[Rows]):
    """A process's share of `size` rows: the rows, their slice of all rows, and their portion of
    them. A process without rows has the first of all rows, with portion 0."""

    rows: Rows
    size: int
    span: slice
    portion: float


def shard_of(rows: Rows, size: int, collectives: Collectives) -> Shard[Rows]:
    """Return this process's shard of `size` rows that every process has."""
    if collectives.size == 1:
        return Shard(rows, size, slice(None), 1.0)
    share = collectives.share(size)
    count = share.stop - share.start
    taken = share if count else slice(0, 1)
    shard: Any = rows
    if isinstance(rows, Tensor):
        shard = rows[taken]
    else:  # slice each tensor of a batch or a draw
        values = {field.name: getattr(rows, field.name) for field in fields(shard)}
        shard = replace(shard, **{n: v if v is None else v[taken] for n, v in values.items()})
    return Shard(shard, size, taken, count / max(1, size))


@dataclass
class Step:
    """Trains an encoder on one batch per call."""

    encoder: Encoder
    scene: Scene  # the training corpus, as input of the encoder
    objective: Objective
    # For each side, one per measure; empty if no Gramian is used.
    estimators: Mapping[str, Sequence[GramianEstimator]]
    measures: Mapping[str, Tensor]  # for each side, [N, R]
    factors: Mapping[str, Tensor]  # for each side, the prior's factors, [N, K]; K may be 0
    optimizers: Sequence[torch.optim.Optimizer]
    joint: JointAlignment | None = None
    independent: bool = False  # whether estimators learn from `draws`, not from the previous batch
    precondition: float = 0.0  # ρ of the preconditioner; 0 for none
    # Whether the penalty's gradient is over `draws`, as in the sampling baselines of [G2] §4, not
    # over the entities of the pairs.
    samples_gradient: bool = False
    # Of the processes that share each batch; each one gets the whole batch.
    collectives: Collectives = ALONE
    decay: float = 1.0  # factor of the learning rates from epoch to epoch
    rescales: bool = False  # whether to scale rows to norm 1 before each epoch

    def begin_epoch(self, start: int = 0, number: int = 0) -> None:
        """Enter training mode, set the epoch's learning rates, and rescale rows if wanted.

        Args:
            start: the first batch; above 0 if the epoch resumes.
            number: of the epoch, from 0.
        """
        decay_rates(self.optimizers, self.decay, number)
        self.encoder.train()
        if not start and self.rescales and isinstance(self.encoder, Factorization):
            self.encoder.rescale()

    def __call__(self, batch: Batch, draws: Mapping[str, Draw] | None = None) -> Tensor:
        """Train on one batch. Return the objective's value, detached.

        Args:
            draws: entities, or pools, that the estimators learn from before the gradient.
        """
        own, alone = shard_of(batch, len(batch.query), self.collectives), self.collectives.size == 1
        # A graph encoder makes one pass per step, for pairs, negatives and Gramians.
        embeddings: Embeddings = self.encoder(self.scene)
        if self.objective.task.wants_all_candidates:
            size = self.scene.size("candidate")
            embeddings = SharedCandidates(embeddings, size, batch.query.device)
        all_entities: dict[str, WeightedRows] | None = None
        if self.objective.wants_moments:
            draws, all_entities = self._begin_estimators(embeddings, draws)
        # Each process computes the whole batch for a task that compares pairs with each other, and
        # for an alignment of the batch's pairs, whose gradient is preconditioned with the loss's.
        aligned = self.joint is not None and self.joint.reads_pairs
        shard = own
        if not alone and (aligned or not self.objective.task.is_mean_of_pairs):
            shard = Shard(batch, own.size, slice(None), 1 / self.collectives.size)
        pairs = shard.rows
        query, query_without_pair = embeddings.of_pairs(pairs.query, pairs.candidate)
        rows = query, embeddings.rows("candidate", pairs.candidate)
        encoded = self._encoded(embeddings, shard, rows, all_entities)
        if query_without_pair is not None:
            encoded = replace(encoded, query=query_without_pair, whole_query=query)
        loss = self._loss(encoded, pairs)
        total = loss.total
        if self.joint is not None:
            total = total + self.joint.part(rows, batch, embeddings, self.collectives)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        torch.autograd.backward(total)
        value = sum_gradients(self.optimizers, loss.objective, self.collectives)
        for optimizer in self.optimizers:
            optimizer.step()
        if self.objective.wants_moments:
            if not self.independent:
                # Reuse the penalty's moments if they are of the batch and not of all entities.
                moments = loss.moments if encoded.all_entities is None else {}
                self._update_from_pairs(own, rows, moments)
            if any(e.wants_after for side in SIDES for e in self.estimators[side]):
                moved_draws = draws if self.samples_gradient else None
                with self.look() as now:
                    self.show_moved(now, self.estimators, batch, moved_draws, self.collectives)
        return value

    def _begin_estimators(
        self, embeddings: Embeddings, draws: Mapping[str, Draw] | None
    ) -> tuple[Mapping[str, Draw] | None, dict[str, WeightedRows] | None]:
        """Start a step of the estimators and update them from draws. Return the drawn entities, and
        their embeddings if the penalty's gradient is over them."""
        for side in SIDES:
            for r, estimator in enumerate(self.estimators[side]):
                estimator.begin(self.population(embeddings, side, r))
        if draws is None:
            return None, None
        draws = self.resampled(embeddings, draws)
        shards = {s: shard_of(draws[s], len(draws[s].ids), self.collectives) for s in SIDES}
        drawn = self._drawn(embeddings, shards)
        self._update({s: (shards[s], drawn[s].rows.detach()) for s in SIDES})
        return draws, drawn if self.samples_gradient else None

    def _update_from_pairs(
        self,
        own: Shard[Batch],
        rows: tuple[Tensor, Tensor],
        moments: Mapping[str, Mapping[int, Tensor]],
    ) -> None:
        """Update the estimators with this process's pairs, whose embeddings are `rows` or a part of
        them, and with the penalty's `moments`, see `_update`."""
        pairs = own.rows
        draws = Draw(pairs.query, pairs.query_weight), Draw(pairs.candidate, pairs.candidate_weight)
        learned = {}
        for side, draw, vectors in zip(SIDES, draws, rows, strict=True):
            if len(vectors) != len(draw.ids):  # the vectors are of the whole batch
                vectors = vectors[own.span]
            learned[side] = Shard(draw, own.size, own.span, own.portion), vectors.detach()
        self._update(learned, moments)

    def _loss(self, encoded: Encoded, pairs: Batch) -> Loss:
        """Return the loss of the pairs, with preconditioned gradients of their embeddings."""
        uses_moments = self.objective.wants_moments
        moments = self._moments if uses_moments else {side: [] for side in SIDES}
        if uses_moments and self.precondition:
            precondition_gradients(
                encoded,
                moments,
                self.objective.penalty,
                self.precondition,
                whole=encoded.all_entities is not None and not self.samples_gradient,
                one_table=self.encoder.one_table,
            )
        loss: Loss = self.objective(encoded, pairs, moments)
        return loss

    @property
    def _moments(self) -> dict[str, list[Moment]]:
        """The current estimates of each side, one per measure."""
        return {s: [e.moment() for e in self.estimators[s]] for s in SIDES}

    def resampled(
        self, embeddings: Embeddings, draws: Mapping[str, Draw], moments: Moments | None = None
    ) -> dict[str, Draw]:
        """Return the draws, with each pool replaced by entities drawn from it in proportion to
        their contribution to the penalty. Pools are embedded in evaluation mode.

        Args:
            moments: estimates of both sides that are independent of the draws, computed in one
                process. None uses the step's own, and all processes share the work.
        """
        collectives = self.collectives if moments is None else ALONE
        drawn = dict(draws)
        for side, other in zip(SIDES, reversed(SIDES), strict=True):
            pool = draws[side]
            if isinstance(pool, Pool):
                shard = shard_of(Draw(pool.ids, pool.weights), len(pool.ids), collectives)
                with self.encoder.evaluating():
                    rows = embeddings.rows(side, shard.rows.ids)
                others = (self._moments if moments is None else moments)[other]
                strengths = self.objective.penalty[: len(others)]
                scores = contributions(rows, shard.rows.weights, others, strengths)
                drawn[side] = pool.resample(collectives.rows(scores, shard.size, "pools"))
        return drawn

    @contextmanager
    def look(self) -> Iterator[Embeddings]:
        """Yield embeddings at the current parameters, in training mode, without side effects."""
        # Reading rows of a user's modules may change running statistics of batch normalisation and
        # draw random numbers for dropout; restore both.
        saved = [(b, b.clone()) for b in self.encoder.buffers()]
        device = self.encoder.device
        devices = [device] if device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices):
            try:
                yield self.encoder(self.scene)
            finally:
                for buffer, value in saved:
                    buffer.copy_(value)

    def show_moved(
        self,
        now: Embeddings,
        estimators: Mapping[str, Sequence[GramianEstimator]],
        batch: Batch,
        draws: Mapping[str, Draw] | None = None,
        collectives: Collectives = ALONE,
    ) -> None:
        """Pass the new embeddings of the entities in a step's gradient (the batch and `draws`) to
        the estimators with `wants_after`."""
        moved = {"query": [batch.query], "candidate": [batch.candidate]}
        if batch.negative is not None:
            moved["candidate"].append(batch.negative.flatten())
        for side, draw in (draws or {}).items():
            moved[side].append(draw.ids)
        for side, id_lists in moved.items():
            receivers = [e for e in estimators[side] if e.wants_after]
            if receivers:
                shard = shard_of(torch.cat(id_lists), sum(map(len, id_lists)), collectives)
                ids, rows = shard.rows, now.rows(side, shard.rows)
                whole_size = None if collectives.size == 1 else shard.size
                entities = EntityBatch(
                    ids,
                    torch.ones_like(ids),
                    rows,
                    self.factors[side][ids],
                    collectives=collectives,
                    whole_size=whole_size,
                )
                for estimator in receivers:
                    estimator.after_step(entities)

    def population(self, embeddings: Embeddings, side: str, r: int = 0) -> Population:
        """Return a function that yields embeddings, weights of measure r and factors in blocks."""

        def blocks() -> Iterable[tuple[Tensor, Tensor, Tensor]]:
            start = 0
            for block in embeddings.blocks(side):
                rows = slice(start, start + len(block))
                share = self.measures[side][rows, r].to(block.device)
                yield block, share, self.factors[side][rows]
                start += len(block)

        return blocks

    def _drawn(
        self, embeddings: Embeddings, shards: Mapping[str, Shard[Draw]]
    ) -> dict[str, WeightedRows]:
        """Return the embeddings of drawn entities, with gradient if the penalty's is over them."""
        drawn = {}
        with torch.set_grad_enabled(self.samples_gradient):
            for side, shard in shards.items():
                rows, weights = embeddings.rows(side, shard.rows.ids), shard.rows.weights
                factors = self._prior_factors(side, shard.rows.ids)
                drawn[side] = WeightedRows.part(rows, weights, factors, shard.portion)
        return drawn

    def _encoded(
        self,
        embeddings: Embeddings,
        shard: Shard[Batch],
        rows: tuple[Tensor, Tensor],
        all_entities: dict[str, WeightedRows] | None,
    ) -> Encoded:
        """Return a batch's rows, negatives and factors for the objective. Without `all_entities` it
        has all entities if they are embedded anyway."""
        batch = shard.rows
        if all_entities is None and self.objective.wants_moments:
            all_entities = self._all_entities(embeddings)
        return Encoded(
            *rows,
            None if batch.negative is None else embeddings.rows("candidate", batch.negative),
            self._prior_factors("query", batch.query),
            self._prior_factors("candidate", batch.candidate),
            all_entities,
            shard.portion,
            embeddings.whole("candidate") if self.objective.task.wants_all_candidates else None,
        )

    def _all_entities(self, embeddings: Embeddings) -> dict[str, WeightedRows] | None:
        """Return all entities, for a penalty gradient without noise, if the Gramians are exact and
        all embeddings have been computed; else None."""
        if not all(e.exact for side in SIDES for e in self.estimators[side]):
            return None
        entities: dict[str, WeightedRows] = {}
        for side in SIDES:
            rows = embeddings.whole(side)
            if rows is None:
                return None
            # Every process has all entities, so each counts for 1/P.
            weight = (self.measures[side] * (len(rows) / self.collectives.size)).to(rows)
            factors = self.factors[side] if self.factors[side].shape[1] else None
            entities[side] = WeightedRows(rows, weight, factors)
        return entities

    def _prior_factors(self, side: str, ids: Tensor) -> Tensor | None:
        """Return the prior's factors of entities, [B, K]; None without a prior."""
        factors = self.factors[side]
        return factors[ids] if factors.shape[1] else None

    def _update(
        self,
        learned: Mapping[str, tuple[Shard[Draw], Tensor]],
        moments: Mapping[str, Mapping[int, Tensor]] | None = None,
    ) -> None:
        """Update the estimators of each side with entities and their embeddings [B, D].

        Args:
            moments: moments of this batch that the penalty has computed, by side and measure.
        """
        for side, (shard, embeddings) in learned.items():
            ids, weights = shard.rows.ids, shard.rows.weights
            if not shard.portion:
                weights = torch.zeros_like(weights)
            table = self.factors[side]
            factors = table[ids] if table.shape[1] else embeddings[:, :0]
            alone = self.collectives.size == 1
            reusable = moments[side] if moments and alone else {}
            batch = EntityBatch(
                ids,
                weights,
                embeddings,
                factors,
                self.collectives,
                whole_size=None if alone else shard.size,
            )
            for r, estimator in enumerate(self.estimators[side]):
                estimator.update(replace(batch, weights=weights[:, r], moment=reusable.get(r)))


class SharedCandidates(Embeddings):
    """Embeddings that compute all candidates once, with gradient, for all uses in a step.

    More than `rows` candidates are embedded in blocks, which the backward pass computes again, so
    that a tower's activations are in memory for one block at a time.

    Args:
        embeddings: of a scene at the current parameters.
        size: N, the number of candidates.
        device: of the ids that are looked up.
    """

    def __init__(
        self, embeddings: Embeddings, size: int, device: torch.device, rows: int = ROWS
    ) -> None:
        self.embeddings = embeddings
        whole = embeddings.whole("candidate")
        if whole is None and size <= rows:
            whole = embeddings.rows("candidate", torch.arange(size, device=device))
        elif whole is None:
            blocks = torch.split(torch.arange(size, device=device), rows)
            embed = partial(checkpoint, embeddings.rows, "candidate", use_reentrant=False)
            whole = torch.cat([embed(ids) for ids in blocks])
        self.candidates: Tensor = whole

    def rows(self, side: str, ids: Tensor) -> Tensor:
        if side == "candidate":
            return self.candidates.index_select(0, ids)
        return self.embeddings.rows(side, ids)

    def of_pairs(self, query: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.embeddings.of_pairs(query, candidate)

    def blocks(self, side: str, batch_size: int = ROWS) -> Iterator[Tensor]:
        return self.embeddings.blocks(side, batch_size)

    def whole(self, side: str) -> Tensor | None:
        return self.candidates if side == "candidate" else self.embeddings.whole(side)


def precondition_gradients(
    encoded: Encoded,
    moments: Moments,
    penalty: Sequence[float],
    ridge: float,
    *,
    whole: bool,
    one_table: bool = False,
) -> None:
    """Register hooks that multiply gradients of embeddings by the other side's preconditioner.

    Args:
        encoded: the embeddings, before `backward`.
        moments: of both sides, one per measure; `penalty`: λ of each measure.
        ridge: ρ of the preconditioner.
        whole: whether the pairs' rows are taken from `encoded.all_entities`.
        one_table: whether both sides' rows are linear in one table. Different matrices for parts of
            a row's gradient could give a sum that does not descend, so their mean multiplies both.
    """
    matrices = {s: preconditioner(moments[s], penalty, ridge) for s in SIDES}
    if one_table:
        mean = (matrices["query"] + matrices["candidate"]) / 2
        matrices = dict.fromkeys(SIDES, mean)
    of_query, of_candidate = matrices["candidate"], matrices["query"]
    pairs: list[tuple[Tensor | None, Tensor]] = [
        (encoded.query, of_query),
        (encoded.whole_query, of_query),
        (encoded.candidate, of_candidate),
        (encoded.negative, of_candidate),
    ]
    if encoded.all_entities is not None:
        query, candidate = (encoded.all_entities[side].rows for side in SIDES)
        if whole:
            pairs = []
        pairs += [(query, of_query), (candidate, of_candidate)]
    for rows, matrix in pairs:
        # The rows of a frozen side have no gradient.
        if rows is not None and rows.requires_grad:
            rows.register_hook(partial(torch.matmul, other=matrix))  # type: ignore[no-untyped-call]


# Codes for parameters without a gradient or with a dense one, instead of a number of rows.
NONE, DENSE = -1, -2


@torch.no_grad()
def sum_gradients(
    optimizers: Sequence[torch.optim.Optimizer], value: Tensor, collectives: Collectives
) -> Tensor:
    """Set every gradient to its sum over processes. Return the sum of the scalar `value`.

    Dense gradients and `value` are summed as one vector per dtype; of sparse gradients only the
    touched rows are exchanged.
    """
    if collectives.size == 1:
        return value
    parameters = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    dense: dict[torch.dtype, list[nn.Parameter]] = {value.dtype: []}
    for parameter, most in zip(parameters, _touched(parameters, collectives), strict=True):
        if most == DENSE:
            dense.setdefault(parameter.dtype, []).append(parameter)
        elif most != NONE:
            gradient = parameter.grad
            if gradient is None:
                ids = torch.zeros(1, 0, dtype=torch.int64, device=parameter.device)
                values = parameter.new_zeros(0, *parameter.shape[1:])
                shape = parameter.shape
                gradient = torch.sparse_coo_tensor(ids, values, shape, is_coalesced=True)
            parameter.grad = collectives.sparse_rows(gradient, most, "tables")
    summed = value
    for dtype, group in dense.items():
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in group]
        first = [value.detach().reshape(1)] if dtype == value.dtype else []
        flat = collectives.sum(torch.cat([*first, *(g.flatten() for g in gradients)]), "layers")
        if first:
            summed, flat = flat[0], flat[1:]
        split = torch.split(flat, [p.numel() for p in group])
        for parameter, gradient in zip(group, split, strict=True):
            parameter.grad = gradient.view_as(parameter).clone()
    return summed


def _touched(parameters: Sequence[nn.Parameter], collectives: Collectives) -> list[int]:
    """Return for each parameter NONE, DENSE, or the largest number of touched rows in a process."""
    touched = []
    for parameter in parameters:
        if parameter.grad is None:
            touched.append(NONE)
        elif not parameter.grad.is_sparse:
            touched.append(DENSE)
        else:
            parameter.grad = parameter.grad.coalesce()
            touched.append(parameter.grad.values().shape[0])
    device = parameters[0].device if parameters else None
    own = torch.tensor([touched], dtype=torch.int64, device=device)
    every = collectives.rows(own, collectives.size, "counts")
    most = torch.where((every == DENSE).any(0), DENSE, every.amax(0))
    counts: list[int] = most.tolist()
    return counts
