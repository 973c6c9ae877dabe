"""One training step, in the order that the Gramian estimators require, shared among processes.

Each process's loss is a part of the whole batch's, and all parts add up to it, so that gradients
are summed. A mean over a share counts for its portion of the rows; what all of P processes compute
alike counts for 1/P.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
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
from evergram.tasks.task import Encoded, Loss, Moments, Objective, Spread
from evergram.training.joint import JointAlignment
from evergram.training.optimizers import decay_rates

Rows = TypeVar("Rows", Batch, Draw, Tensor)


@dataclass(frozen=True)
class Part(Generic[Rows]):
    """The rows that a process has of `size` rows, their place among all, and what they count for in
    a mean over all; where it has none, the first of all stands in and counts for nothing."""

    rows: Rows
    size: int
    place: slice
    portion: float


def part_of(rows: Rows, size: int, collectives: Collectives) -> Part[Rows]:
    """Return a process's part of `size` rows that every process was given."""
    if collectives.size == 1:
        return Part(rows, size, slice(None), 1.0)
    place = collectives.share(size)
    count = place.stop - place.start
    own = place if count else slice(0, 1)
    cut: Any = rows
    if isinstance(rows, Tensor):
        cut = rows[own]
    else:  # each tensor of a batch or a draw
        values = {field.name: getattr(cut, field.name) for field in fields(cut)}
        cut = replace(cut, **{n: v if v is None else v[own] for n, v in values.items()})
    return Part(cut, size, own, count / max(1, size))


@dataclass
class Step:
    """Trains an encoder on one batch a call.

    Args:
        scene: the training corpus, as the encoder sees it.
        estimators: of each side, one a measure; empty where no Gramian is used.
        measures: of each side, [N, R].
        factors: of each side, [N, K]: the prior, and a last column of ones where means are wanted.
        prior: how many of those K columns are the prior.
        precondition: ρ of the preconditioner; 0 leaves gradients as they are.
        independent: whether estimators learn from `draws`, or from the batch before.
        samples_gradient: whether the penalty's gradient is over `draws`, as in the sampling
            baselines of [G2] §4, or over the entities of the pairs.
        collectives: of the processes that share each batch; every one is given all of it.
        decay: factor of the learning rates from epoch to epoch.
        rescales: whether each epoch begins with rows of norm 1.
    """

    encoder: Encoder
    scene: Scene
    objective: Objective
    estimators: Mapping[str, Sequence[GramianEstimator]]
    measures: Mapping[str, Tensor]
    factors: Mapping[str, Tensor]
    prior: int
    optimizers: Sequence[torch.optim.Optimizer]
    joint: JointAlignment | None = None
    independent: bool = False
    precondition: float = 0.0
    samples_gradient: bool = False
    collectives: Collectives = ALONE
    decay: float = 1.0
    rescales: bool = False
    # This process's share of the next batch's embeddings before the last step, by side, and the
    # number of rows of all processes.
    look_ahead: dict[str, Tensor] = field(default_factory=dict, repr=False)
    look_ahead_rows: dict[str, int] = field(default_factory=dict, repr=False)

    def begin_epoch(self, start: int = 0, number: int = 0) -> None:
        """Enter training mode with an epoch's rates and rows.

        Args:
            start: the epoch's first batch; above 0 the look ahead stays.
            number: of the epoch, from 0.
        """
        decay_rates(self.optimizers, self.decay, number)
        self.encoder.train()
        if not start:
            self.look_ahead = {}
            if self.rescales and isinstance(self.encoder, Factorization):
                self.encoder.rescale()

    def __call__(
        self,
        batch: Batch,
        draws: Mapping[str, Draw] | None = None,
        upcoming: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Train on one batch. Return the objective's value, detached.

        Args:
            draws: entities that the estimators learn from before the gradient, or pools of them.
            upcoming: ids of the next draws (or of the next batch), for estimators that want to see
                them at the parameters before this step too; None at an epoch's end.
        """
        own, alone = part_of(batch, len(batch.query), self.collectives), self.collectives.size == 1
        # One pass serves all that this step asks of a graph: pairs, negatives and Gramians.
        embeddings: Embeddings = self.encoder(self.scene)
        if self.objective.task.wants_all_candidates:
            size = self.scene.size("candidate")
            embeddings = CandidatesAtHand(embeddings, size, batch.query.device)
        everyone: dict[str, Spread] | None = None
        if self.objective.wants_moments:
            draws, everyone = self._begin_estimators(embeddings, draws)
        # A task that compares pairs with each other computes all of them in each process, and so
        # does an alignment of the batch's pairs, whose gradient is preconditioned with the loss's.
        aligned = self.joint is not None and self.joint.reads_pairs
        shown = own
        if not alone and (aligned or not self.objective.task.is_mean_of_pairs):
            shown = Part(batch, own.size, slice(None), 1 / self.collectives.size)
        pairs = shown.rows
        query, without = embeddings.of_pairs(pairs.query, pairs.candidate)
        rows = query, embeddings.rows("candidate", pairs.candidate)
        encoded = self._encoded(embeddings, shown, rows, everyone)
        if without is not None:
            encoded = replace(encoded, query=without, whole_query=query)
        loss = self._loss(encoded, pairs)
        total = loss.total
        if self.joint is not None:
            total = total + self.joint.part(rows, batch, embeddings, self.collectives)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        torch.autograd.backward(total)
        value = sum_gradients(self.optimizers, loss.objective, self.collectives)
        seen_before = self.look_ahead
        self.look_ahead = {}
        if self.objective.wants_moments and upcoming is not None and self.wants_before:
            self.look_ahead_rows = {s: len(ids) for s, ids in upcoming.items()}
            with torch.no_grad():
                for side in SIDES:
                    ids = part_of(upcoming[side], len(upcoming[side]), self.collectives).rows
                    self.look_ahead[side] = embeddings.rows(side, ids)
        for optimizer in self.optimizers:
            optimizer.step()
        if self.objective.wants_moments:
            # The penalty's rows are what is learned, unless all entities stood in for the batch.
            made = loss.moments if encoded.everyone is None else {}
            if not self.independent:
                mine = own.rows
                learned = {
                    "query": (Draw(mine.query, mine.query_weight), rows[0]),
                    "candidate": (Draw(mine.candidate, mine.candidate_weight), rows[1]),
                }
                parts = {}
                for side, (draw, vectors) in learned.items():
                    if len(vectors) != len(draw.ids):  # of all processes' pairs
                        vectors = vectors[own.place]
                    part = Part(draw, own.size, own.place, own.portion)
                    parts[side] = part, vectors.detach()
                self._update(parts, seen_before, made)
            if any(e.wants_after for side in SIDES for e in self.estimators[side]):
                apart = draws if self.samples_gradient else None
                with self.look() as now:
                    self.show_moved(now, self.estimators, batch, apart, self.collectives)
        return value

    def _begin_estimators(
        self, embeddings: Embeddings, draws: Mapping[str, Draw] | None
    ) -> tuple[Mapping[str, Draw] | None, dict[str, Spread] | None]:
        """Show estimators the entities before a step, and let them learn from draws. Return what
        was drawn, and its embeddings where the penalty's gradient is over them."""
        for side in SIDES:
            for r, estimator in enumerate(self.estimators[side]):
                estimator.begin(self.population(embeddings, side, r))
        if draws is None:
            return None, None
        draws = self.resampled(embeddings, draws)
        parts = {s: part_of(draws[s], len(draws[s].ids), self.collectives) for s in SIDES}
        drawn = self._drawn(embeddings, parts)
        self._update({s: (parts[s], drawn[s].rows.detach()) for s in SIDES})
        return draws, drawn if self.samples_gradient else None

    def _loss(self, encoded: Encoded, pairs: Batch) -> Loss:
        """Return the loss of the pairs, the gradients of whose embeddings are preconditioned."""
        wanted = self.objective.wants_moments
        moments = self._moments if wanted else {side: [] for side in SIDES}
        if wanted and self.precondition:
            turn_gradients(
                encoded,
                moments,
                self.objective.penalty,
                self.precondition,
                whole=encoded.everyone is not None and not self.samples_gradient,
                one_table=self.encoder.one_table,
            )
        loss: Loss = self.objective(encoded, pairs, moments)
        return loss

    def whole_look_ahead(self) -> dict[str, Tensor]:
        """Return the look ahead's rows of all processes, by side."""
        return {
            side: self.collectives.rows(rows, self.look_ahead_rows[side], "look ahead")
            for side, rows in self.look_ahead.items()
        }

    @property
    def wants_before(self) -> bool:
        """Whether an estimator wants the next batch's embeddings from before a step too."""
        return any(e.wants_before for side in SIDES for e in self.estimators[side])

    @property
    def _moments(self) -> dict[str, list[Moment]]:
        """The estimates of each side as they are now, one a measure."""
        return {s: [e.moment() for e in self.estimators[s]] for s in SIDES}

    def resampled(
        self, embeddings: Embeddings, draws: Mapping[str, Draw], moments: Moments | None = None
    ) -> dict[str, Draw]:
        """Return what estimators learn from: from a pool, entities drawn by their contribution to
        the penalty; any other draw as it is. A pool is embedded in evaluation mode.

        Args:
            moments: of both sides and the first measures, made without knowledge of the draws.
                None: the step's own, and all processes embed the pool together.
        """
        collectives = self.collectives if moments is None else ALONE
        chosen = dict(draws)
        for side, other in zip(SIDES, reversed(SIDES), strict=True):
            pool = draws[side]
            if isinstance(pool, Pool):
                part = part_of(Draw(pool.ids, pool.weights), len(pool.ids), collectives)
                with self.encoder.evaluating():
                    rows = embeddings.rows(side, part.rows.ids)
                others = (self._moments if moments is None else moments)[other]
                # Without λ, where only a task uses Gramians, all count alike.
                penalty = self.objective.penalty
                strengths = (penalty if any(penalty) else [1.0] * len(penalty))[: len(others)]
                scores = contributions(rows, part.rows.weights, others, strengths)
                chosen[side] = pool.resample(collectives.rows(scores, part.size, "pools"))
        return chosen

    @contextmanager
    def look(self) -> Iterator[Embeddings]:
        """Give the embeddings as the next step will see them; the run stays as it was."""
        # Normalisation by batch keeps running statistics, and dropout draws. Only a step may leave
        # a trace of either; modules of the user's do both when rows are read.
        kept = [(b, b.clone()) for b in self.encoder.buffers()]
        device = self.encoder.device
        devices = [device] if device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices):
            try:
                yield self.encoder(self.scene)
            finally:
                for buffer, value in kept:
                    buffer.copy_(value)

    def show_moved(
        self,
        now: Embeddings,
        estimators: Mapping[str, Sequence[GramianEstimator]],
        batch: Batch,
        draws: Mapping[str, Draw] | None = None,
        collectives: Collectives = ALONE,
    ) -> None:
        """Show estimators that want it the entities of a step's gradient (those of the batch and of
        `draws`) as the step left them, in `now`."""
        moved = {"query": [batch.query], "candidate": [batch.candidate]}
        if batch.negative is not None:
            moved["candidate"].append(batch.negative.flatten())
        for side, draw in (draws or {}).items():
            moved[side].append(draw.ids)
        for side, each in moved.items():
            wanting = [e for e in estimators[side] if e.wants_after]
            if wanting:
                part = part_of(torch.cat(each), sum(map(len, each)), collectives)
                ids, rows = part.rows, now.rows(side, part.rows)
                whole_size = None if collectives.size == 1 else part.size
                shown = EntityBatch(
                    *(ids, torch.ones_like(ids), rows, self.factors[side][ids]),
                    collectives=collectives,
                    whole_size=whole_size,
                )
                for estimator in wanting:
                    estimator.after_step(shown)

    def population(self, embeddings: Embeddings, side: str, r: int = 0) -> Population:
        """Return a function that gives embeddings, shares of measure r and factors, in blocks."""

        def blocks() -> Iterable[tuple[Tensor, Tensor, Tensor]]:
            start = 0
            for block in embeddings.blocks(side):
                part = slice(start, start + len(block))
                share = self.measures[side][part, r].to(block.device)
                yield block, share, self.factors[side][part]
                start += len(block)

        return blocks

    def _drawn(self, embeddings: Embeddings, parts: Mapping[str, Part[Draw]]) -> dict[str, Spread]:
        """Return the embeddings of drawn entities, with gradient if the penalty's is over them."""
        spreads = {}
        with torch.set_grad_enabled(self.samples_gradient):
            for side, part in parts.items():
                rows = embeddings.rows(side, part.rows.ids)
                factors = self.factors[side][part.rows.ids, : self.prior] if self.prior else None
                spreads[side] = Spread.part(rows, part.rows.weights, factors, part.portion)
        return spreads

    def _encoded(
        self,
        embeddings: Embeddings,
        shown: Part[Batch],
        rows: tuple[Tensor, Tensor],
        everyone: dict[str, Spread] | None,
    ) -> Encoded:
        """Return what the objective takes: a batch's rows, negatives, factors, and the rows that
        stand for all entities: `everyone`, else all if they are embedded, else the batch's."""
        batch = shown.rows
        if everyone is None and self.objective.wants_moments:
            everyone = self._everyone(embeddings)
        return Encoded(
            *rows,
            None if batch.negative is None else embeddings.rows("candidate", batch.negative),
            self.factors["query"][batch.query, : self.prior] if self.prior else None,
            self.factors["candidate"][batch.candidate, : self.prior] if self.prior else None,
            everyone,
            shown.portion,
            embeddings.whole("candidate") if self.objective.task.wants_all_candidates else None,
        )

    def _everyone(self, embeddings: Embeddings) -> dict[str, Spread] | None:
        """Return all entities if the Gramians are exact and a pass has embedded them all, for a
        penalty's gradient without noise; else None."""
        if not all(e.exact for side in SIDES for e in self.estimators[side]):
            return None
        spreads: dict[str, Spread] = {}
        for side in SIDES:
            rows = embeddings.whole(side)
            if rows is None:
                return None
            # Every process has them all.
            weight = (self.measures[side] * (len(rows) / self.collectives.size)).to(rows)
            factors = self.factors[side][:, : self.prior] if self.prior else None
            spreads[side] = Spread(rows, weight, factors)
        return spreads

    def _update(
        self,
        learned: Mapping[str, tuple[Part[Draw], Tensor]],
        before: Mapping[str, Tensor] | None = None,
        made: Mapping[str, Mapping[int, Tensor]] | None = None,
    ) -> None:
        """Fold entities with their embeddings [B, D] into the estimators of each side.

        Args:
            made: the batch's moments that the penalty has made, by side and measure.
        """
        past = self.look_ahead if before is None else before
        for side, (part, embeddings) in learned.items():
            ids, weights = part.rows.ids, part.rows.weights
            if not part.portion:  # its one row only stands in
                weights = torch.zeros_like(weights)
            factors = self.factors[side]
            # Without factors nothing is looked up.
            own = factors[ids] if factors.shape[1] else embeddings[:, :0]
            alone = self.collectives.size == 1
            known = made[side] if made and alone and factors.shape[1] == self.prior else {}
            batch = EntityBatch(
                *(ids, weights, embeddings, own, past.get(side), self.collectives),
                whole_size=None if alone else part.size,
            )
            for r, estimator in enumerate(self.estimators[side]):
                estimator.update(replace(batch, weights=weights[:, r], moment=known.get(r)))


class CandidatesAtHand(Embeddings):
    """Embeddings of which all candidates are computed once, with gradient, and shared by all that a
    step asks.

    Where they are more than `rows`, they are embedded in blocks that the backward pass embeds
    again: of a tower's layers only one block is in memory.

    Args:
        embeddings: of a scene at the current parameters.
        size: N, of the candidates.
        device: of the ids that are looked up.
        rows: of a block.
    """

    def __init__(
        self, embeddings: Embeddings, size: int, device: torch.device, rows: int = ROWS
    ) -> None:
        self.embeddings = embeddings
        whole = embeddings.whole("candidate")
        if whole is None and size <= rows:
            whole = embeddings.rows("candidate", torch.arange(size, device=device))
        elif whole is None:
            places = torch.split(torch.arange(size, device=device), rows)
            # The backward pass computes the layers of each block again.
            again = partial(checkpoint, embeddings.rows, "candidate", use_reentrant=False)
            whole = torch.cat([again(ids) for ids in places])
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


def turn_gradients(
    encoded: Encoded,
    moments: Moments,
    penalty: Sequence[float],
    ridge: float,
    *,
    whole: bool,
    one_table: bool = False,
) -> None:
    """Multiply the gradients of embeddings by the other side's preconditioner.

    Args:
        encoded: the embeddings, before `backward`.
        moments: of both sides, one a measure; `penalty`: λ of each measure.
        ridge: ρ of the preconditioner.
        whole: whether the pairs' rows are taken from `encoded.everyone`.
        one_table: whether both sides' rows are linear in one table. Two matrices would turn parts
            of one row's gradient apart, and the sum need not descend, so the mean turns all.
    """
    other = {s: preconditioner(moments[s], penalty, ridge) for s in SIDES}
    if one_table:
        mean = (other["query"] + other["candidate"]) / 2
        other = dict.fromkeys(SIDES, mean)
    pairs: list[tuple[Tensor | None, Tensor]] = [
        (encoded.query, other["candidate"]),
        (encoded.whole_query, other["candidate"]),
        (encoded.candidate, other["query"]),
        (encoded.negative, other["query"]),
    ]
    if encoded.everyone is not None:
        query, candidate = (encoded.everyone[side].rows for side in SIDES)
        if whole:
            pairs = []
        pairs += [(query, other["candidate"]), (candidate, other["query"])]
    for rows, matrix in pairs:
        # A side that is frozen as a whole has no gradient to multiply.
        if rows is not None and rows.requires_grad:
            rows.register_hook(partial(torch.matmul, other=matrix))  # type: ignore[no-untyped-call]


# What a parameter has in a process where no gradient reached it, or a dense one.
NONE, DENSE = -1, -2


@torch.no_grad()
def sum_gradients(
    optimizers: Sequence[torch.optim.Optimizer], value: Tensor, collectives: Collectives
) -> Tensor:
    """Give every trained parameter the sum of the processes' gradients. Return the sum of `value`.

    Dense gradients are summed in one vector a dtype, together with `value`, a scalar; of a sparse
    one the touched rows are gathered.
    """
    if collectives.size == 1:
        return value
    parameters = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    dense: dict[torch.dtype, list[nn.Parameter]] = {value.dtype: []}
    for parameter, most in zip(parameters, _touched(parameters, collectives), strict=True):
        if most == DENSE:
            dense.setdefault(parameter.dtype, []).append(parameter)
        elif most != NONE:
            own = parameter.grad
            if own is None:
                ids = torch.zeros(1, 0, dtype=torch.int64, device=parameter.device)
                values = parameter.new_zeros(0, *parameter.shape[1:])
                shape = parameter.shape
                own = torch.sparse_coo_tensor(ids, values, shape, is_coalesced=True)
            parameter.grad = collectives.sparse_rows(own, most, "tables")
    summed = value
    for dtype, owners in dense.items():
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in owners]
        first = [value.detach().reshape(1)] if dtype == value.dtype else []
        flat = collectives.sum(torch.cat([*first, *(part.flatten() for part in parts)]), "layers")
        if first:
            summed, flat = flat[0], flat[1:]
        split = torch.split(flat, [p.numel() for p in owners])
        for parameter, part in zip(owners, split, strict=True):
            parameter.grad = part.view_as(parameter).clone()
    return summed


def _touched(parameters: Sequence[nn.Parameter], collectives: Collectives) -> list[int]:
    """Return NONE, DENSE or the largest number of touched rows of each parameter."""
    kinds = []
    for parameter in parameters:
        if parameter.grad is None:
            kinds.append(NONE)
        elif not parameter.grad.is_sparse:
            kinds.append(DENSE)
        else:
            parameter.grad = parameter.grad.coalesce()
            kinds.append(parameter.grad.values().shape[0])
    device = parameters[0].device if parameters else None
    mine = torch.tensor([kinds], dtype=torch.int64, device=device)
    every = collectives.rows(mine, collectives.size, "counts")
    most = torch.where((every == DENSE).any(0), DENSE, every.amax(0))
    counts: list[int] = most.tolist()
    return counts
