"""Alignment to the version before, trained together with an encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from evergram.collectives import Collectives
from evergram.compatibility.alignment_loss import AlignmentLoss
from evergram.compatibility.transforms import Transform
from evergram.data.sampling import Batch
from evergram.encoders.encoder import SIDES, Embeddings
from evergram.training.recipe.tables import TransformTraining

DEFAULT = TransformTraining()


class _Part(NamedTuple):
    """Embeddings [B, D] of the rows `ids` [B] of a side, and their weights [B] in the mean."""

    side: str
    ids: Tensor
    vectors: Tensor
    weight: Tensor


class JointAlignment(nn.Module):
    """Returns λ times the alignment loss of B_k, trained with an encoder, over objects that version
    k-1 knows.

    Args:
        transform: B_k, trained here.
        loss: of errors of z_{k-1}.
        past: for each side, z_{k-1} [N, D_{k-1}] of the training corpus's entities.
        weight: for each side, float [N], 1 for an object that takes part.
        strength: λ on mean ‖δ‖².
        adam: `rate`, and the `objects` of the mean: "all", [BC] Eq. (7) and (10), is exact where a
            pass embeds all of them, else estimated from a uniform draw of `rows` of each side;
            "paper-code" has the batch's queries, its candidates and as many negatives, each third
            with its own mean; "batch" `rows` of the batch's queries and of its candidates.
        seed: of the draws.
    Source: [BC] Eq. (3), (7), (10).
    """

    def __init__(
        self,
        transform: Transform,
        loss: AlignmentLoss,
        past: Mapping[str, Tensor],
        weight: Mapping[str, Tensor],
        strength: float,
        adam: TransformTraining = DEFAULT,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.transform = transform
        self.loss = loss
        self.strength = strength
        self.adam = adam
        self.seed = seed
        self.rate: float = adam.rate
        # Whether the loss is over the batch's pairs; each process then embeds all of them.
        self.reads_pairs: bool = adam.objects != "all"
        for side in SIDES:
            lifted = self.loss.lifted(past[side])
            self.register_buffer(f"lifted_{side}", lifted, persistent=False)
            self.register_buffer(f"weight_{side}", weight[side], persistent=False)
            known = torch.nonzero(weight[side]).flatten()
            self.register_buffer(f"known_{side}", known, persistent=False)
        self.steps: Tensor
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def part(
        self,
        rows: tuple[Tensor, Tensor],
        batch: Batch,
        embeddings: Embeddings,
        collectives: Collectives,
    ) -> Tensor:
        """Return one process's part of the loss of the whole batch, which each computes.

        Args:
            rows: the embeddings of the batch's pairs: of all of them if `reads_pairs`.
        """
        whole: Tensor = self(*rows, batch, embeddings)
        return whole / collectives.size

    def forward(
        self, query: Tensor, candidate: Tensor, batch: Batch, embeddings: Embeddings
    ) -> Tensor:
        match self.adam.objects:
            case "all":
                parts = [self._all(side, embeddings) for side in SIDES]
            case "paper-code":
                parts = self._thirds(query, candidate, batch, embeddings)
            case "batch":
                first = slice(self.adam.rows)
                parts = [
                    self._part("query", batch.query[first], query[first]),
                    self._part("candidate", batch.candidate[first], candidate[first]),
                ]
        self.steps += 1
        loss = self._mean(parts)
        return self.strength * loss + self.transform.penalty().to(loss)

    def _mean(self, parts: Sequence[_Part]) -> Tensor:
        """Return the weighted mean over the objects of all parts."""
        lifted = torch.cat([self.get_buffer(f"lifted_{part.side}")[part.ids] for part in parts])
        vectors, weight = (torch.cat([getattr(p, n) for p in parts]) for n in ("vectors", "weight"))
        mean: Tensor = self.loss(self.transform, vectors, lifted, weight)
        return mean

    @torch.no_grad()
    def error(self, new: Mapping[str, Tensor]) -> float:
        """Return the mean over sides of mean ‖L δ‖² over the objects that take part, for published
        vectors z_k [N, D_k] of each side."""
        errors = []
        for side in SIDES:
            known = self.get_buffer(f"known_{side}")
            lifted = self.get_buffer(f"lifted_{side}")[known]
            weight = new[side].new_ones(len(known))
            if len(known):
                loss = self.loss(self.transform, new[side][known], lifted, weight)
                errors.append(float(loss))
        return sum(errors) / max(1, len(errors))

    def _part(self, side: str, ids: Tensor, vectors: Tensor) -> _Part:
        return _Part(side, ids, vectors, self.get_buffer(f"weight_{side}")[ids])

    def _all(self, side: str, embeddings: Embeddings) -> _Part:
        """Return the side's objects that take part, or a draw of them that is weighted to stand for
        all."""
        known: Tensor = self.get_buffer(f"known_{side}")
        whole = embeddings.whole(side)
        if whole is not None:
            return self._part(side, known, whole[known])
        drawn = known
        if len(known) > self.adam.rows:
            drawn = known[self._draw(side, len(known), self.adam.rows).to(known.device)]
        part = self._part(side, drawn, embeddings.rows(side, drawn))
        return part._replace(weight=part.weight * (len(known) / max(len(drawn), 1)))

    def _thirds(
        self, query: Tensor, candidate: Tensor, batch: Batch, embeddings: Embeddings
    ) -> list[_Part]:
        """Return a batch's queries, candidates and negatives; each group's weights sum to one."""
        negative = batch.negative
        if negative is None:  # the task has none of its own
            count = len(self.get_buffer("weight_candidate"))
            drawn = self._draw("candidate", count, len(batch.candidate))
            negative = drawn.to(batch.candidate.device)
        groups = [
            ("query", batch.query, query),
            ("candidate", batch.candidate, candidate),
            ("candidate", negative, embeddings.rows("candidate", negative)),
        ]
        parts = [self._part(*group) for group in groups]
        return [
            part._replace(weight=part.weight / part.weight.sum().clamp(min=1)) for part in parts
        ]

    def _draw(self, side: str, count: int, size: int) -> Tensor:
        """Return `size` numbers below `count`, other ones each step, the same in a resumed run."""
        seed = self.seed * 1_000_003 + int(self.steps) * 2 + SIDES.index(side)
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(count, (size,), generator=generator)
