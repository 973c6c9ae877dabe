"""Tasks that a batch's pairs, and the moments of all entities, make the loss of."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from evergram.data.sampling import Batch
from evergram.errors import ShapeError
from evergram.tasks.kinds import PairLoss, loss_named
from evergram.tasks.task import Encoded, Moments, Task, score


class Pointwise(Task):
    """mean ℓ(⟨u, v⟩, t) over observed pairs, for any ℓ. [G2] Eq. (1).

    >>> import torch
    >>> from evergram.tasks import Pointwise
    >>> quartic = Pointwise(lambda score, target: (score - target) ** 4)

    Args:
        loss: a name in `LOSSES`, or a function of scores [B] and targets [B] that returns one
            number a pair, [B].
    Raises: ValueError: no loss has that name.
    """

    is_mean_of_pairs = True

    def __init__(self, loss: str | PairLoss = "squared") -> None:
        super().__init__()
        self.loss = loss
        try:
            self.function: PairLoss = loss_named(loss).function if isinstance(loss, str) else loss
        except ValueError as error:
            raise ValueError(f"The pointwise loss is {loss!r}; {error}.") from None

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        """Return the mean loss of the batch's pairs.

        Raises: ShapeError: the function returned something else than one number a pair.
        """
        scores = score(encoded)
        losses = self.function(scores, batch.target)
        shape = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        if shape != list(scores.shape):
            raise ShapeError(
                f"The pointwise loss returned {shape}; it must return a tensor of shape "
                f"{list(scores.shape)}, the loss of each pair: leave the mean to the task."
            )
        return losses.mean()


class BPR(Task):
    """mean log(1 + exp(−(⟨u, v⁺⟩ − ⟨u, v⁻⟩))), one uniform rejected negative a pair.

    Source: Rendle et al. 2009; positives and negatives as [BC] App. A draws them.
    """

    wants_negatives = True
    is_mean_of_pairs = True

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        assert encoded.negative is not None
        other = (encoded.query * encoded.negative).sum(-1)
        return functional.softplus(other - score(encoded)).mean()


class StreamedFrequency(torch.nn.Module):
    """The chance of each candidate to be in a batch, estimated as batches pass.

    For each candidate it averages the number of batches between two that hold the candidate; the
    chance is the inverse. The average forgets with `rate` once it has 1/rate observations.

    Args:
        size: N.
        rate: of forgetting.
    Source: Yi et al. 2019, Algorithm 2.
    """

    def __init__(self, size: int, rate: float = 0.05) -> None:
        super().__init__()
        self.rate = rate
        self.last: Tensor
        self.gap: Tensor
        self.met: Tensor
        self.step: Tensor
        self.register_buffer("last", torch.zeros(size))
        self.register_buffer("gap", torch.ones(size))
        self.register_buffer("met", torch.zeros(size))
        self.register_buffer("step", torch.zeros(()))

    def observe(self, ids: Tensor) -> None:
        """Learn from a batch of candidates, int64 [B], with repeats."""
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

    log Q, the chance to be in a batch, is subtracted from the scores ⟨u, v⟩/τ, so that frequent
    candidates are not penalised; the same candidate elsewhere in the batch is not a negative.
    In evaluation mode (`eval()`) nothing is learned of the chances.

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
        places = torch.arange(len(logits), device=logits.device)
        repeated = batch.candidate[:, None] == batch.candidate
        repeated[places, places] = False
        logits = logits.masked_fill(repeated, -torch.inf)
        return functional.cross_entropy(logits, places)


class SecondOrderSoftmax(Task):
    """The softmax over all candidates, its log-partition expanded to second order.

    log Σ_b q_b e^{s_b} ≈ ⟨u, v̄⟩ + ½ uᵀ(G_v − v̄ v̄ᵀ)u, so that a pair costs −s + that. The gradient
    reaches candidates through the same moments of the queries: ⟨ū, v⟩ + ½ (v − v̄)ᵀ G_u (v − v̄).
    The queries' measure should be that of examples, or queries weigh otherwise than their pairs.

    Args:
        temperature: τ; the scores are ⟨u, v⟩/τ.
        centred: False drops v̄ v̄ᵀ, which is a constant prior of −1 (RG²).
    Source: docs/method.md, "Second-order softmax".
    """

    wants_means = True
    is_mean_of_pairs = True

    def __init__(self, temperature: float = 1.0, centred: bool = True) -> None:
        super().__init__()
        self.temperature = temperature
        self.centred = centred

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        of_queries, of_candidates = moments["query"][0], moments["candidate"][0]
        query_mean = of_queries.cross[:, -1].detach()
        candidate_mean = of_candidates.cross[:, -1].detach()
        scale = 1 / self.temperature
        query, candidate = encoded.query, encoded.candidate
        first = query @ candidate_mean
        second = (query @ of_candidates.gramian.detach() * query).sum(-1)
        if self.centred:
            second = second - first.square()
        weight = batch.query_weight[:, 0]
        loss = -scale * score(encoded).mean()
        value = (weight * (scale * first + 0.5 * scale**2 * second)).mean()
        # The same sum by the candidates: its gradient counts, and its value is taken off.
        moved = candidate - candidate_mean if self.centred else candidate
        pushed = (moved @ of_queries.gramian.detach() * moved).sum(-1)
        drawn = scale * (candidate @ query_mean) + 0.5 * scale**2 * pushed
        other = (batch.candidate_weight[:, 0] * drawn).mean()
        return loss + value + other - other.detach()


# t(s) = 1 + first·s + second·s², and the least value of 1 + first·E[s] + second·E[s²].
FORMS = {"taylor": (1.0, 0.5, 0.5), "square": (0.0, 1.0, 1.0)}


class Spherical(Task):
    """−log of t(s) over its mean on all candidates, t a quadratic in place of the exponential.

    "taylor": t(s) = 1 + s + ½s², the log-Taylor softmax. "square": t(s) = 1 + s², the log-spherical
    softmax; a pair with a large negative score is then as likely as one with a large positive one,
    and below −1 the same holds for "taylor". With s = ⟨u, v⟩/τ the mean over candidates is

        Z_a = Σ_b q_b t(s_ab) = 1 + c₁⟨u_a, v̄⟩/τ + c₂ u_aᵀ G_v u_a/τ²,

    exactly: no expansion and no sample. A candidate v is pushed by Σ_a (p_a/Z_a)(c₁ u_a/τ +
    2c₂ u_a u_aᵀ v/τ²), whose weights 1/Z_a no Gramian has. It is summed over the batch's *other*
    pairs, for a candidate's own query is not independent of it. With pairs drawn independently the
    gradient is without bias, except for that of 1/Ẑ where moments are estimates. A batch of one
    pair pushes no candidate. The queries' measure should be that of examples.

    Args:
        temperature: τ; "square" with τ is the spherical softmax with ε = τ².
        form: "taylor" or "square".
    Raises: ValueError: another form.
    Source: the family is that of Vincent et al. 2015; the two losses are de Brébisson and Vincent
        2016; [G1] §6 and [G2] §5 name it as the next step for Gramian estimation. docs/method.md,
        "The spherical family".
    """

    wants_means = True

    def __init__(self, temperature: float = 1.0, form: str = "taylor") -> None:
        super().__init__()
        if form not in FORMS:
            raise ValueError(f"The spherical form is {form!r}; it must be 'taylor' or 'square'.")
        self.form = form
        self.temperature = temperature

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        first, second, least = FORMS[self.form]
        first, second = first / self.temperature, second / self.temperature**2
        query, candidate = encoded.query, encoded.candidate
        of_candidates = moments["candidate"][0]
        mean, gramian = of_candidates.cross[:, -1].detach(), of_candidates.gramian.detach()
        pushed = (query @ gramian * query).sum(-1)
        # Ĝ − v̄v̄ᵀ of an estimate may be indefinite; that of any embeddings is not.
        partition = (1 + first * (query @ mean) + second * pushed).clamp(min=least)
        weight = batch.query_weight[:, 0]
        scores = score(encoded)
        likelihood = 1 + first * scores + second * scores.square()
        loss = (weight * partition.log()).mean() - likelihood.log().mean()
        # The same sum by the candidates: its gradient counts, and its value is taken off.
        share = weight / partition.detach() / max(1, len(query) - 1)
        own = query.detach()
        weighted = own * share[:, None]
        inner = (own * candidate).sum(-1)
        line = candidate @ weighted.sum(0) - share * inner
        square = (candidate @ (weighted.T @ own) * candidate).sum(-1) - share * inner.square()
        others = (batch.candidate_weight[:, 0] * (first * line + second * square)).mean()
        return loss + others - others.detach()
