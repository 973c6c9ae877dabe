"""Tasks, losses on observed pairs, and the objective that one is part of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from evergram.data.sampling import Batch
from evergram.errors import ShapeError
from evergram.gramian.estimator import Moment
from evergram.gramian.penalty import BatchSide, penalty_of_batch

# For each side, one moment a measure.
Moments = Mapping[str, list[Moment]]


@dataclass(frozen=True)
class Spread:
    """Weighted rows that stand for all entities of one side, for terms that are not of pairs.

    Args:
        rows: [M, D].
        weight: [M, R], μ with mean(μ u⊗u) the Gramian of each measure, in expectation.
        factors: [M, K], rows of the prior; None without a prior.
    """

    rows: Tensor
    weight: Tensor
    factors: Tensor | None = None

    @classmethod
    def part(cls, rows: Tensor, weight: Tensor, factors: Tensor | None, portion: float) -> Spread:
        """Return some of the rows, which count for a portion of the mean over all."""
        if portion != 1:
            weight = weight.to(torch.promote_types(weight.dtype, rows.dtype)) * portion
        return cls(rows, weight, factors)


@dataclass(frozen=True)
class Encoded:
    """The embeddings of a batch, for a loss.

    Args:
        query, candidate: [B, D], as the loss of a pair sees them.
        negative: [B, D], embeddings of `Batch.negative`; or None.
        query_factors, candidate_factors: [B, K], rows of the prior; None without a prior.
        everyone: all entities of each side, if their embeddings are computed anyway; None lets the
            batch stand for them.
        all_candidates: [N, D], differentiable, for tasks that want them; else None.
        portion: what these pairs count for in the whole batch's loss; below 1 where processes share
            the batch. Weights of `everyone` contain theirs.
        whole_query: [B, D], the queries' rows as all but a pair's own loss sees them, where `query`
            is made without the pair's candidate; None where both are the same.
    """

    query: Tensor
    candidate: Tensor
    negative: Tensor | None = None
    query_factors: Tensor | None = None
    candidate_factors: Tensor | None = None
    everyone: Mapping[str, Spread] | None = None
    portion: float = 1.0
    all_candidates: Tensor | None = None
    whole_query: Tensor | None = None

    @property
    def queries(self) -> Tensor:
        """The queries' rows, [B, D], with all of their candidates in them."""
        return self.query if self.whole_query is None else self.whole_query

    def spread(self, batch: Batch) -> Mapping[str, Spread]:
        """Return the rows that stand for all entities of each side."""
        if self.everyone is not None:
            return self.everyone
        return {
            "query": Spread.part(
                self.queries, batch.query_weight, self.query_factors, portion=self.portion
            ),
            "candidate": Spread.part(
                self.candidate, batch.candidate_weight, self.candidate_factors, portion=self.portion
            ),
        }


class Task(nn.Module, ABC):
    """The loss of a batch's observed pairs; any state is in buffers."""

    # True if training must provide negatives in the batch; the mean embedding as the last column
    # of the moments; the embeddings of all candidates.
    wants_negatives = False
    wants_means = False
    wants_all_candidates = False
    # True if the loss is a mean over pairs, each of its own rows and the moments alone, without
    # state: processes that share a batch then need not show each other their rows.
    is_mean_of_pairs = False
    # True if products of queries and all candidates may be in bfloat16, summed in float32.
    lower_products = False

    @abstractmethod
    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        """Return the loss, a scalar.

        Args:
            moments: of each side, one for each measure; detached.
        """


def score(encoded: Encoded) -> Tensor:
    """Return ⟨u, v⟩ of each observed pair, [B]."""
    return (encoded.query * encoded.candidate).sum(-1)


@dataclass(frozen=True)
class Loss:
    """A batch's loss, for the gradient step, and the objective that it estimates, for reports.

    Args:
        moments: S_B [D, D + K] of each side of the rows that the penalty is over, by measure, where
            it made them.
    """

    total: Tensor
    objective: Tensor
    moments: Mapping[str, dict[int, Tensor]] = field(default_factory=dict)


class Objective(nn.Module):
    """task + Σ_r λ_r ĝ_r + mean w (s − π)² + l2 · mean(‖u‖² + ‖v‖²).

    Σ_r p_r ⊗ q_r are the low-rank weights of all pairs and w the sparse ones of observed pairs
    ([G2] App. C, remark).

    Args:
        task: the loss on observed pairs.
        penalty: λ_r, one a measure; zero leaves it out. The equal of implicit ALS with weight α₀ on
            all pairs is λ = ½ α₀ |A||B| / n, with the uniform measure.
        l2: weight of squared norms.
        l2_measure: "examples", mean over the batch including its negatives, if any; or
            "penalty", under the (first) measure of the penalty, which is the same as l2/λ added to
            the diagonal of both Gramians.
        constant: Σ_r λ_r Σ_ab p_a q_b π_ab², which the penalty's value lacks ([G2] App. B).
    Source: [G2] §2, Eq. (7), App. B and C.
    """

    def __init__(
        self,
        task: Task,
        penalty: Sequence[float] = (0.0,),
        l2: float = 0.0,
        constant: float = 0.0,
        l2_measure: str = "examples",
    ) -> None:
        super().__init__()
        self.task = task
        self.penalty: tuple[float, ...] = tuple(penalty)
        self.l2 = l2
        self.l2_measure = l2_measure
        self.constant = constant

    @property
    def wants_moments(self) -> bool:
        """True if it uses any Gramian."""
        return any(self.penalty) or self.task.wants_means

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Loss:
        """Return the loss of a batch, or of a process's portion of one, of which all add up to it.

        Raises: ShapeError: the task's is no number to train by.
        """
        spread = encoded.spread(batch)
        loss: Tensor = self.task(encoded, batch, moments)
        self._check(loss, encoded)
        portion = encoded.portion
        if self.l2 and self.l2_measure != "penalty":
            drawn = (encoded.queries, encoded.candidate, encoded.negative)
            norms = sum(mean_squared_norm(x) for x in drawn if x is not None)
            share = 1.0 if batch.pair_share is None else batch.pair_share.mean()
            loss = loss + self.l2 * share * norms
        if batch.pair_weight is not None:
            scores = (encoded.queries * encoded.candidate).sum(-1)  # those of the penalty
            missed = scores - self._prior(encoded)
            loss = loss + (batch.pair_weight * missed.square()).mean()
        if portion != 1:
            loss = loss * portion
        ridge = 0.0
        if self.l2 and self.l2_measure == "penalty":
            if self.penalty[0]:
                ridge = self.l2 / self.penalty[0]
            else:
                loss = loss + self.l2 * _norms(spread, {})
        objective = loss.detach() + self.constant * portion
        made: dict[str, dict[int, Tensor]] = {side: {} for side in spread}
        for r, strength in enumerate(self.penalty):
            if not strength:
                continue
            query_side, candidate_side = (
                BatchSide(side.rows, side.weight[:, r], moments[name][r], side.factors)
                for name, side in spread.items()
            )
            added = 0.0 if r else ridge
            value, *own = penalty_of_batch(query_side, candidate_side, added, strength)
            loss = loss + value
            # λ ĝ estimates 2 λ g, and the objective holds λ g.
            objective = objective + 0.5 * value.detach()
            for name, batch_moment in zip(spread, own, strict=True):
                if batch_moment is not None:
                    made[name][r] = batch_moment
        if ridge:
            # The penalty had the norms, too, and half of them were counted.
            with torch.no_grad():
                objective = objective + 0.5 * self.l2 * _norms(spread, made)
        return Loss(loss, objective, made)

    def _check(self, loss: object, encoded: Encoded) -> None:
        """Refuse a loss that cannot train. Raises: ShapeError."""
        name = type(self.task).__name__
        if not isinstance(loss, Tensor) or loss.ndim:
            shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ShapeError(f"{name} returned {shape}; a task's loss is a tensor of one number.")
        if encoded.query.requires_grad and not loss.requires_grad:
            raise ShapeError(
                f"The loss that {name} returned has no gradient, so that observed pairs would "
                "train nothing; compute it from the embeddings, by functions of torch."
            )

    def _prior(self, encoded: Encoded) -> Tensor:
        """π of each observed pair, [B]."""
        if encoded.query_factors is None or encoded.candidate_factors is None:
            return torch.zeros(len(encoded.query), device=encoded.query.device)
        return (encoded.query_factors * encoded.candidate_factors).sum(-1)


def _norms(spread: Mapping[str, Spread], moments: Mapping[str, Mapping[int, Tensor]]) -> Tensor:
    """Return mean μ ‖u‖² + mean ν ‖v‖² under the first measure: traces of the batch's Gramians,
    where they are at hand."""
    query, candidate = (
        moments[name][0].diagonal().sum()
        if 0 in moments.get(name, {})
        else mean_squared_norm(side.rows, side.weight[:, 0])
        for name, side in spread.items()
    )
    return query + candidate


def mean_squared_norm(rows: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return mean μ ‖x‖² over rows x, a scalar; differentiable once, by the rows.

    Args:
        rows: [..., D].
        weight: μ, [...]; None is one for each row.
    """
    value: Tensor = _MeanSquaredNorm.apply(rows, weight)  # type: ignore[no-untyped-call]
    return value


class _MeanSquaredNorm(torch.autograd.Function):
    """Saves the rows themselves: autograd's own square, sum and mean write each of theirs."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor | None) -> Tensor:
        count = rows.numel() // rows.shape[-1]
        ctx.save_for_backward(rows, weight)
        if weight is None:
            flat = rows.flatten()
            return torch.dot(flat, flat) / count
        squares = torch.linalg.vector_norm(rows, dim=-1).square()
        return torch.dot(squares.flatten(), weight.to(squares).flatten()) / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        rows, weight = ctx.saved_tensors
        scale = grad * (2 / (rows.numel() // rows.shape[-1]))
        return rows * (scale if weight is None else (weight.to(rows) * scale)[..., None]), None
