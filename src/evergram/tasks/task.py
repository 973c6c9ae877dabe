"""The interface of tasks, which are losses on observed pairs; the objective, which adds the penalty
to a task; and the tasks other than the softmax over all candidates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from evergram.data.sampling import Batch
from evergram.errors import ShapeError
from evergram.gramian.estimator import Moment
from evergram.gramian.penalty import BatchSide, penalty_of_batch

if TYPE_CHECKING:
    from evergram.tasks.kinds import PairLoss

# For each side, one moment per measure.
Moments = Mapping[str, list[Moment]]


@dataclass(frozen=True)
class WeightedRows:
    """Weighted rows whose mean represents all entities of one side, for the penalty and norms.

    Args:
        rows: [M, D].
        weight: [M, R], μ such that E[mean(μ u⊗u)] is the Gramian under each measure.
        factors: [M, K], rows of the prior; None without a prior.
    """

    rows: Tensor
    weight: Tensor
    factors: Tensor | None = None

    @classmethod
    def part(
        cls, rows: Tensor, weight: Tensor, factors: Tensor | None, portion: float
    ) -> WeightedRows:
        """Return rows that make up a portion of a mean over more rows."""
        if portion != 1:
            weight = weight.to(torch.promote_types(weight.dtype, rows.dtype)) * portion
        return cls(rows, weight, factors)


@dataclass(frozen=True)
class Encoded:
    """The embeddings of a batch, as input of a loss."""

    # [B, D], for the losses of pairs.
    query: Tensor
    candidate: Tensor
    negative: Tensor | None = None  # [B, D], embeddings of `Batch.negative`; or None
    # [B, K], rows of the prior; None without a prior.
    query_factors: Tensor | None = None
    candidate_factors: Tensor | None = None
    # Of each side, if computed anyway; None if the batch represents them.
    all_entities: Mapping[str, WeightedRows] | None = None
    # Weight of these pairs in the whole batch's loss; below 1 if processes share the batch. It is
    # already in the weights of `all_entities`.
    portion: float = 1.0
    # [N, D], differentiable, for tasks that want them; else None.
    all_candidates: Tensor | None = None
    # [B, D], the queries' embeddings for everything but the losses of pairs, if `query` excludes
    # the pair's candidate; None if both are the same.
    whole_query: Tensor | None = None

    @property
    def queries(self) -> Tensor:
        """The queries' embeddings, [B, D], not excluding the pair's candidate."""
        return self.query if self.whole_query is None else self.whole_query

    def entities(self, batch: Batch) -> Mapping[str, WeightedRows]:
        """Return the rows that represent all entities of each side: `all_entities` or the batch."""
        if self.all_entities is not None:
            return self.all_entities
        return {
            "query": WeightedRows.part(
                self.queries, batch.query_weight, self.query_factors, portion=self.portion
            ),
            "candidate": WeightedRows.part(
                self.candidate, batch.candidate_weight, self.candidate_factors, portion=self.portion
            ),
        }


class Task(nn.Module, ABC):
    """The loss of a batch's observed pairs; its state must be in buffers."""

    # True if training must provide, respectively: negatives in the batch; the embeddings of all
    # candidates.
    wants_negatives = False
    wants_all_candidates = False
    # True if the loss is a mean over pairs that only depend on their own rows and the moments, and
    # has no state: processes that share a batch then need not exchange rows.
    is_mean_of_pairs = False
    # True if queries may be multiplied by all candidates in bfloat16, with sums in float32.
    lower_products = False

    @abstractmethod
    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        """Return the loss, a scalar; `moments`, of each side and measure, are detached."""


def score(encoded: Encoded) -> Tensor:
    """Return ⟨u, v⟩ of each observed pair, [B]."""
    return (encoded.query * encoded.candidate).sum(-1)


@dataclass(frozen=True)
class Loss:
    """A batch's loss, for the gradient, and the objective that it estimates, for reports.

    Args:
        moments: S_B [D, D + K] of the penalty's rows, by side and measure, if it computed them.
    """

    total: Tensor
    objective: Tensor
    moments: Mapping[str, dict[int, Tensor]] = field(default_factory=dict)


class Objective(nn.Module):
    """task + Σ_r λ_r ĝ_r + mean w (s − π)² + l2 · mean(‖u‖² + ‖v‖²).

    Σ_r p_r ⊗ q_r are the low-rank weights of all pairs and w the sparse ones of observed pairs
    ([G2] App. C, remark).

    Args:
        penalty: λ_r, one per measure; 0 for none. λ = ½ α₀ |A||B| / n with the uniform measure is
            equivalent to implicit ALS with weight α₀ on all pairs.
        l2: weight of squared norms.
        l2_measure: "examples", a mean over the batch including negatives; or "penalty", under the
            penalty's (first) measure, equivalent to adding l2/λ to the diagonals of both Gramians.
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
        """True if the objective uses Gramians."""
        return any(self.penalty)

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Loss:
        """Return the loss of a batch; for a process's share of it, a summand of that loss.

        Raises: ShapeError: the task's loss is not a differentiable scalar.
        """
        entities = encoded.entities(batch)
        loss: Tensor = self.task(encoded, batch, moments)
        self._check(loss, encoded)
        portion = encoded.portion
        if self.l2 and self.l2_measure != "penalty":
            batch_rows = (encoded.queries, encoded.candidate, encoded.negative)
            norms = sum(mean_squared_norm(rows) for rows in batch_rows if rows is not None)
            share = 1.0 if batch.pair_share is None else batch.pair_share.mean()
            loss = loss + self.l2 * share * norms
        if batch.pair_weight is not None:
            errors = (encoded.queries * encoded.candidate).sum(-1)  # the penalty's scores, minus π
            if encoded.query_factors is not None and encoded.candidate_factors is not None:
                errors = errors - (encoded.query_factors * encoded.candidate_factors).sum(-1)
            loss = loss + (batch.pair_weight * errors.square()).mean()
        if portion != 1:
            loss = loss * portion
        ridge = 0.0
        if self.l2 and self.l2_measure == "penalty":
            if self.penalty[0]:
                ridge = self.l2 / self.penalty[0]
            else:
                loss = loss + self.l2 * _norms(entities, {})
        objective = loss.detach() + self.constant * portion
        batch_moments: dict[str, dict[int, Tensor]] = {side: {} for side in entities}
        for r, strength in enumerate(self.penalty):
            if not strength:
                continue
            query_side, candidate_side = (
                BatchSide(side.rows, side.weight[:, r], moments[name][r], side.factors)
                for name, side in entities.items()
            )
            ridge_r = 0.0 if r else ridge
            value, *moments_r = penalty_of_batch(query_side, candidate_side, ridge_r, strength)
            loss = loss + value
            # λ ĝ estimates 2 λ g, and the objective contains λ g.
            objective = objective + 0.5 * value.detach()
            for name, batch_moment in zip(entities, moments_r, strict=True):
                if batch_moment is not None:
                    batch_moments[name][r] = batch_moment
        if ridge:
            # The penalty's value includes the norms, of which only half was added above.
            with torch.no_grad():
                objective = objective + 0.5 * self.l2 * _norms(entities, batch_moments)
        return Loss(loss, objective, batch_moments)

    def _check(self, loss: object, encoded: Encoded) -> None:
        """Raise ShapeError if the loss is not a scalar with a gradient."""
        name = type(self.task).__name__
        if not isinstance(loss, Tensor) or loss.ndim:
            shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ShapeError(f"{name} returned {shape}; a task's loss must be a scalar tensor.")
        if encoded.query.requires_grad and not loss.requires_grad:
            raise ShapeError(
                f"The loss that {name} returned has no gradient, so observed pairs would have no "
                "effect; compute it from the embeddings with torch functions."
            )


def _norms(
    entities: Mapping[str, WeightedRows], moments: Mapping[str, Mapping[int, Tensor]]
) -> Tensor:
    """Return mean μ ‖u‖² + mean ν ‖v‖² under the first measure, as traces of `moments` if given."""
    query, candidate = (
        moments[name][0].diagonal().sum()
        if 0 in moments.get(name, {})
        else mean_squared_norm(side.rows, side.weight[:, 0])
        for name, side in entities.items()
    )
    return query + candidate


def mean_squared_norm(rows: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return mean μ ‖x‖² over rows x, a scalar; differentiable once, by the rows.

    Args:
        rows: [..., D].
        weight: μ, [...]; None is 1 for every row.
    """
    value: Tensor = _MeanSquaredNorm.apply(rows, weight)  # type: ignore[no-untyped-call]
    return value


class _MeanSquaredNorm(torch.autograd.Function):
    """Only saves the rows; autograd would also store the results of square and sum."""

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


class Pointwise(Task):
    """mean ℓ(⟨u, v⟩, t) over observed pairs, for any ℓ. [G2] Eq. (1).

    >>> import torch
    >>> from evergram.tasks import Pointwise
    >>> quartic = Pointwise(lambda score, target: (score - target) ** 4)

    Args:
        loss: a function of scores [B] and targets [B] that returns one number per pair, [B].
    """

    is_mean_of_pairs = True

    def __init__(self, loss: PairLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        """Return the mean loss of the batch's pairs.

        Raises: ShapeError: the function did not return one number per pair.
        """
        scores = score(encoded)
        losses = self.loss(scores, batch.target)
        shape = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        if shape != list(scores.shape):
            raise ShapeError(
                f"The pointwise loss returned {shape}; it must return a tensor of shape "
                f"{list(scores.shape)}, the loss of each pair; the task computes the mean."
            )
        return losses.mean()


class BPR(Task):
    """mean log(1 + exp(−(⟨u, v⁺⟩ − ⟨u, v⁻⟩))), with one uniform unobserved negative per pair.

    Source: Rendle et al. 2009; positives and negatives are drawn as in [BC] App. A.
    """

    wants_negatives = True
    is_mean_of_pairs = True

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        assert encoded.negative is not None
        other = (encoded.query * encoded.negative).sum(-1)  # scores of the negatives
        return functional.softplus(other - score(encoded)).mean()


class StreamedFrequency(torch.nn.Module):
    """Estimates the probability of each candidate to be in a batch, from the batches so far.

    It averages the number of batches from one occurrence of a candidate to the next; the
    probability is the inverse. After 1/rate observations the average becomes exponential.

    Args:
        size: N.
        rate: of the exponential average.
    Source: Yi et al. 2019, Algorithm 2.
    """

    def __init__(self, size: int, rate: float = 0.05) -> None:
        super().__init__()
        self.rate = rate
        self.last: Tensor = nn.Buffer(torch.zeros(size))
        self.gap: Tensor = nn.Buffer(torch.ones(size))
        self.met: Tensor = nn.Buffer(torch.zeros(size))
        self.step: Tensor = nn.Buffer(torch.zeros(()))

    def observe(self, ids: Tensor) -> None:
        """Update from a batch of candidates, int64 [B]; repeats count once."""
        ids = torch.unique(ids)
        self.step = self.step + 1
        self.met[ids] += 1
        rate = (1 / self.met[ids]).clamp(min=self.rate)
        self.gap[ids] = torch.lerp(self.gap[ids], self.step - self.last[ids], rate)
        self.last[ids] = self.step

    def log_chance(self, ids: Tensor) -> Tensor:
        """Return log Q of candidates [B], [B]."""
        return -self.gap[ids].clamp(min=1).log()


class Softmax(Task):
    """Cross entropy of each pair's candidate among the candidates of its batch.

    log Q, with the probability Q to be in a batch, is subtracted from the scores ⟨u, v⟩/τ, so that
    frequent candidates are not penalised. The same candidate in another pair is not a negative. In
    evaluation mode (`eval()`) the probabilities are not updated.

    Args:
        size: N of the candidates.
        temperature: τ.
    Source: Yi et al. 2019.
    """

    def __init__(self, size: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature
        self.frequency: StreamedFrequency = StreamedFrequency(size)

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        if self.training:
            self.frequency.observe(batch.candidate)
        logits = encoded.query @ encoded.candidate.T / self.temperature
        logits = logits - self.frequency.log_chance(batch.candidate)
        diagonal = torch.arange(len(logits), device=logits.device)
        repeated = batch.candidate[:, None] == batch.candidate
        repeated[diagonal, diagonal] = False
        logits = logits.masked_fill(repeated, -torch.inf)
        return functional.cross_entropy(logits, diagonal)
