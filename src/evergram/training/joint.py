"""Alignment to the previous version, trained together with an encoder."""

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


class _Objects(NamedTuple):
    """Objects of one side: rows `ids` [B], embeddings [B, D], and weights [B] in the mean."""

    side: str
    ids: Tensor
    vectors: Tensor
    weight: Tensor


class JointAlignment(nn.Module):
    """λ times the alignment loss of a transform B_k, trained together with the encoder.

    Args:
        transform: B_k, trained here.
        loss: of the errors of B_k(z_k) against z_{k-1}.
        past: for each side, z_{k-1} [N, D_{k-1}] of the training corpus's entities.
        weight: for each side, float [N]: 1 for objects of version k-1 to align, else 0.
        strength: λ on mean ‖δ‖².
        adam: the learning `rate`, and the `objects` of the mean. "all", [BC] Eq. (7) and (10), is
            exact if the encoder embeds all entities in a pass, else estimated from `rows` uniform
            draws of each side. "paper-code" averages the batch's queries, its candidates, and as
            many negatives, each third with its own mean. "batch" takes the first `rows` of the
            batch's queries and candidates.
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
        # Whether the loss is over the batch's pairs, which each process then embeds.
        self.reads_pairs: bool = adam.objects != "all"
        for side in SIDES:
            lifted = self.loss.lifted(past[side])
            self.register_buffer(f"lifted_{side}", lifted, persistent=False)
            self.register_buffer(f"weight_{side}", weight[side], persistent=False)
            used_rows = torch.nonzero(weight[side]).flatten()
            self.register_buffer(f"known_{side}", used_rows, persistent=False)
        self.steps: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def part(
        self,
        rows: tuple[Tensor, Tensor],
        batch: Batch,
        embeddings: Embeddings,
        collectives: Collectives,
    ) -> Tensor:
        """Return one process's share of the loss; each process computes the whole batch's loss.
        `rows` are embeddings of the batch's pairs; if `reads_pairs`, of the whole batch."""
        whole: Tensor = self(*rows, batch, embeddings)
        return whole / collectives.size

    def forward(
        self, query: Tensor, candidate: Tensor, batch: Batch, embeddings: Embeddings
    ) -> Tensor:
        match self.adam.objects:
            case "all":
                groups = [self._all(side, embeddings) for side in SIDES]
            case "paper-code":
                groups = self._thirds(query, candidate, batch, embeddings)
            case "batch":
                first = slice(self.adam.rows)
                groups = [
                    self._objects("query", batch.query[first], query[first]),
                    self._objects("candidate", batch.candidate[first], candidate[first]),
                ]
        self.steps += 1
        loss = self._mean(groups)
        return self.strength * loss + self.transform.penalty().to(loss)

    def _mean(self, groups: Sequence[_Objects]) -> Tensor:
        """Return the weighted mean over the objects of all groups."""
        lifted = torch.cat([self.get_buffer(f"lifted_{g.side}")[g.ids] for g in groups])
        vectors = torch.cat([g.vectors for g in groups])
        weight = torch.cat([g.weight for g in groups])
        mean: Tensor = self.loss(self.transform, vectors, lifted, weight)
        return mean

    @torch.no_grad()
    def error(self, new: Mapping[str, Tensor]) -> float:
        """Return mean ‖L δ‖² over the objects used for alignment, averaged over both sides, for
        published vectors z_k [N, D_k] of each side."""
        errors = []
        for side in SIDES:
            used_rows = self.get_buffer(f"known_{side}")
            lifted = self.get_buffer(f"lifted_{side}")[used_rows]
            weight = new[side].new_ones(len(used_rows))
            if len(used_rows):
                loss = self.loss(self.transform, new[side][used_rows], lifted, weight)
                errors.append(float(loss))
        return sum(errors) / max(1, len(errors))

    def _objects(self, side: str, ids: Tensor, vectors: Tensor) -> _Objects:
        return _Objects(side, ids, vectors, self.get_buffer(f"weight_{side}")[ids])

    def _all(self, side: str, embeddings: Embeddings) -> _Objects:
        """Return all of a side's objects used for alignment, or a random sample with weights that
        make its sum an estimate of the sum over all."""
        used_rows: Tensor = self.get_buffer(f"known_{side}")
        whole = embeddings.whole(side)
        if whole is not None:
            return self._objects(side, used_rows, whole[used_rows])
        drawn = used_rows
        if len(used_rows) > self.adam.rows:
            draw = self._draw(side, len(used_rows), self.adam.rows)
            drawn = used_rows[draw.to(used_rows.device)]
        objects = self._objects(side, drawn, embeddings.rows(side, drawn))
        return objects._replace(weight=objects.weight * (len(used_rows) / max(len(drawn), 1)))

    def _thirds(
        self, query: Tensor, candidate: Tensor, batch: Batch, embeddings: Embeddings
    ) -> list[_Objects]:
        """Return a batch's queries, candidates and negatives; each group's weights sum to 1."""
        negative = batch.negative
        if negative is None:  # a task without negatives
            count = len(self.get_buffer("weight_candidate"))
            drawn = self._draw("candidate", count, len(batch.candidate))
            negative = drawn.to(batch.candidate.device)
        groups = [
            self._objects("query", batch.query, query),
            self._objects("candidate", batch.candidate, candidate),
            self._objects("candidate", negative, embeddings.rows("candidate", negative)),
        ]
        return [g._replace(weight=g.weight / g.weight.sum().clamp(min=1)) for g in groups]

    def _draw(self, side: str, count: int, size: int) -> Tensor:
        """Return `size` random numbers below `count`, by the seed and the number of this step."""
        seed = self.seed * 1_000_003 + int(self.steps) * 2 + SIDES.index(side)
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(count, (size,), generator=generator)
