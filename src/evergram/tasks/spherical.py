"""Losses of the spherical family: likelihoods over all candidates that need two moments only."""

from __future__ import annotations

from torch import Tensor

from evergram.data.sampling import Batch
from evergram.tasks.task import Encoded, Moments, Task, score

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
