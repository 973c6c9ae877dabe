"""One training step, in the order that the Gramian estimators require."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from evergram.data.pools.pool import Pool
from evergram.data.sampling import Batch, Draw
from evergram.encoders.encoder import Embeddings, Encoder, Scene
from evergram.encoders.features import SIDES
from evergram.gramian.contributions import contributions
from evergram.gramian.estimator import EntityBatch, GramianEstimator, Moment, Population
from evergram.gramian.preconditioner import preconditioner
from evergram.tasks.objective import Objective
from evergram.tasks.task import Encoded, Moments, Spread


class Joint(nn.Module, ABC):
    """A module trained together with the encoder; its loss is added to the task's.

    Its own parameters are trained at `training.layer_rate`, or at its own `rate`.
    """

    rate: float | None = None

    @abstractmethod
    def forward(
        self, query: Tensor, candidate: Tensor, batch: Batch, embeddings: Embeddings
    ) -> Tensor:
        """Return a scalar loss.

        Args:
            query, candidate: the batch's embeddings, [B, D] each.
            embeddings: gives those of any other entities.
        """


@dataclass
class Step:
    """Trains an encoder on one batch a call.

    Args:
        scene: the training corpus, as the encoder sees it.
        estimators: of each side, one a measure; no estimators are kept where no Gramian is used.
        measures: of each side, [N, R].
        factors: of each side, [N, K]: the prior, and a last column of ones where means are wanted.
        prior: how many of those K columns are the prior.
        precondition: ρ of the preconditioner; 0 leaves gradients as they are.
        independent: whether the estimators learn from entities drawn apart (`draws`), or from the
            batch before.
        samples_gradient: whether the penalty's gradient is over the entities drawn apart, as in the
            sampling baselines of [G2] §4, or over those of the pairs.
    """

    encoder: Encoder
    scene: Scene
    objective: Objective
    estimators: Mapping[str, Sequence[GramianEstimator]]
    measures: Mapping[str, Tensor]
    factors: Mapping[str, Tensor]
    prior: int
    optimizers: Sequence[torch.optim.Optimizer]
    joint: Joint | None = None
    independent: bool = False
    precondition: float = 0.0
    samples_gradient: bool = False
    # The next batch's embeddings before the last step, for estimators that want them.
    _seen_before: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def begin_epoch(self) -> None:
        """Enter training mode and forget the last epoch's look ahead."""
        self.encoder.train()
        self._seen_before = {}

    def __call__(
        self,
        batch: Batch,
        draws: Mapping[str, Draw] | None = None,
        upcoming: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Train on one batch.

        Args:
            draws: entities that the estimators learn from before the gradient, or pools of them;
                with `independent`.
            upcoming: ids of the next draws (or of the next batch), for estimators that want to see
                them at the parameters before this step too; None at an epoch's end.
        Returns: the objective's value, detached.
        """
        wanted = self.objective.wants_moments
        everyone: dict[str, Spread] | None = None
        # One pass serves all that this step asks of a graph: pairs, negatives and Gramians.
        embeddings: Embeddings = self.encoder(self.scene)
        if wanted:
            for side in SIDES:
                for r, estimator in enumerate(self.estimators[side]):
                    estimator.begin(self.population(embeddings, side, r))
            if draws is not None:
                draws = self.resampled(embeddings, draws)
                drawn = self._drawn(embeddings, draws)
                self._update(
                    {s: (draws[s].ids, draws[s].weights, drawn[s].rows.detach()) for s in SIDES}
                )
                if self.samples_gradient:
                    everyone = drawn
        query, candidate = (
            embeddings.rows("query", batch.query),
            embeddings.rows("candidate", batch.candidate),
        )
        encoded = self._encoded(embeddings, batch, (query, candidate), everyone)
        moments = self._moments if wanted else {s: [] for s in SIDES}
        if wanted and self.precondition:
            self._turn(encoded, moments)
        loss = self.objective(encoded, batch, moments)
        total = loss.total
        if self.joint is not None:
            total = total + self.joint(query, candidate, batch, embeddings)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        total.backward()
        seen_before = self._seen_before
        self._seen_before = {}
        if wanted and upcoming is not None and self.wants_before:
            with torch.no_grad():
                self._seen_before = {s: embeddings.rows(s, upcoming[s]) for s in SIDES}
        for optimizer in self.optimizers:
            optimizer.step()
        if wanted and not self.independent:
            rows = {
                "query": (batch.query, batch.query_weight, query.detach()),
                "candidate": (batch.candidate, batch.candidate_weight, candidate.detach()),
            }
            self._update(rows, seen_before)
        value: Tensor = loss.objective
        return value

    @property
    def wants_before(self) -> bool:
        """Whether an estimator wants the next batch's embeddings from before a step too."""
        return any(e.wants_before for side in SIDES for e in self.estimators[side])

    @property
    def _moments(self) -> dict[str, list[Moment]]:
        """The estimates of each side as they are now, one a measure."""
        return {s: [e.moment() for e in self.estimators[s]] for s in SIDES}

    def resampled(
        self,
        embeddings: Embeddings,
        draws: Mapping[str, Draw],
        moments: Moments | None = None,
    ) -> dict[str, Draw]:
        """Return what estimators learn from: of a pool entities drawn by their contribution to the
        penalty; any other draw as it is.

        A pool is embedded in evaluation mode: it moves no running statistics.

        Args:
            moments: of both sides, made without knowledge of the draws; None: the step's own. They
                may be of the first measures alone.
        """
        chosen = dict(draws)
        for side, other in zip(SIDES, reversed(SIDES), strict=True):
            pool = draws[side]
            if isinstance(pool, Pool):
                with self.encoder.evaluating():
                    rows = embeddings.rows(side, pool.ids)
                others = (self._moments if moments is None else moments)[other]
                # Without λ, where only a task or an orthogonal term uses Gramians, all count alike.
                penalty = self.objective.penalty
                strengths = (penalty if any(penalty) else [1.0] * len(penalty))[: len(others)]
                scores = contributions(rows, pool.weights, others, strengths)
                chosen[side] = pool.resample(scores)
        return chosen

    @contextmanager
    def look(self) -> Iterator[Embeddings]:
        """Give the embeddings as the next step will see them; the run stays as it was."""
        # Normalisation by batch keeps running statistics, and dropout draws. Only a step may leave
        # a trace of either; modules of the user's do both when rows are read.
        kept = [(b, b.clone()) for b in self.encoder.buffers()]
        device = next(self.encoder.parameters()).device
        devices = [device] if device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices):
            try:
                yield self.encoder(self.scene)
            finally:
                for buffer, value in kept:
                    buffer.copy_(value)

    def population(self, embeddings: Embeddings, side: str, r: int = 0) -> Population:
        """Return a function that gives every entity's embedding, its share of measure r, and its
        factors, in blocks."""

        def blocks() -> Iterable[tuple[Tensor, Tensor, Tensor]]:
            start = 0
            for block in embeddings.blocks(side):
                part = slice(start, start + len(block))
                share = self.measures[side][part, r].to(block.device)
                yield block, share, self.factors[side][part]
                start += len(block)

        return blocks

    def _drawn(self, embeddings: Embeddings, draws: Mapping[str, Draw]) -> dict[str, Spread]:
        """Return the embeddings of drawn entities; with gradient only if the penalty's is over
        them."""
        with torch.set_grad_enabled(self.samples_gradient):
            rows = {side: embeddings.rows(side, draws[side].ids) for side in SIDES}
        factors = {s: self.factors[s][draws[s].ids, : self.prior] for s in SIDES}
        return {
            s: Spread(rows[s], draws[s].weights, factors[s] if self.prior else None) for s in SIDES
        }

    def _encoded(
        self,
        embeddings: Embeddings,
        batch: Batch,
        rows: tuple[Tensor, Tensor],
        everyone: dict[str, Spread] | None,
    ) -> Encoded:
        """Return what the objective takes: a batch's rows, negatives, factors and all entities.

        Args:
            everyone: drawn rows that stand for all entities; None lets all of them do so if they
                are at hand, and the batch's rows otherwise.
        """
        query, candidate = rows
        if everyone is None and self.objective.wants_moments:
            everyone = self._everyone(embeddings)
        return Encoded(
            query,
            candidate,
            None if batch.negative is None else embeddings.rows("candidate", batch.negative),
            self.factors["query"][batch.query, : self.prior] if self.prior else None,
            self.factors["candidate"][batch.candidate, : self.prior] if self.prior else None,
            everyone,
        )

    def _everyone(self, embeddings: Embeddings) -> dict[str, Spread] | None:
        """Return all entities if the Gramians are exact and a pass has embedded them all; else
        None. The penalty's gradient is then without noise, whatever the batch."""
        if not all(e.exact for side in SIDES for e in self.estimators[side]):
            return None
        spreads: dict[str, Spread] = {}
        for side in SIDES:
            rows = embeddings.whole(side)
            if rows is None:
                return None
            weight = (self.measures[side] * len(rows)).to(rows)
            factors = self.factors[side][:, : self.prior] if self.prior else None
            spreads[side] = Spread(rows, weight, factors)
        return spreads

    def _turn(self, encoded: Encoded, moments: Moments) -> None:
        """Multiply the gradients of embeddings by the other side's preconditioner."""
        penalty = self.objective.penalty
        other = {s: preconditioner(moments[s], penalty, self.precondition) for s in SIDES}
        pairs: list[tuple[Tensor | None, Tensor]] = [
            (encoded.query, other["candidate"]),
            (encoded.candidate, other["query"]),
            (encoded.negative, other["query"]),
        ]
        if encoded.everyone is not None:
            query, candidate = (encoded.everyone[side].rows for side in SIDES)
            if not self.samples_gradient:
                pairs = []  # the pairs' rows are taken from these
            pairs += [(query, other["candidate"]), (candidate, other["query"])]
        for rows, matrix in pairs:
            # A side that is frozen as a whole has no gradient to multiply.
            if rows is not None and rows.requires_grad:
                rows.register_hook(partial(torch.matmul, other=matrix))  # type: ignore[no-untyped-call]

    def _update(
        self,
        rows: Mapping[str, tuple[Tensor, Tensor, Tensor]],
        before: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Fold rows into the estimators of each side: ids [B], weights [B, R], embeddings [B,
        D]."""
        past = self._seen_before if before is None else before
        for side, (ids, weights, embeddings) in rows.items():
            factors = self.factors[side]
            # Without factors nothing is looked up.
            own = factors[ids] if factors.shape[1] else embeddings[:, :0]
            for r, estimator in enumerate(self.estimators[side]):
                estimator.update(EntityBatch(ids, weights[:, r], embeddings, own, past.get(side)))
