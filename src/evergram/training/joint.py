"""The alignment to the version before, as something that trains together with an encoder."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from evergram.compatibility.alignment import AlignmentLoss
from evergram.compatibility.transforms import Transform
from evergram.data.sampling import Batch
from evergram.encoders.features import SIDES
from evergram.training.step import Joint


class Alignment(Joint):
    """λ times the alignment loss of B_k, over the objects of a batch that version k-1 knows.

    Args:
        transform: B_k, trained here.
        loss: what errors count, on z_{k-1}.
        past: for each side, z_{k-1} [N, D_{k-1}] of the training corpus's entities, computed once:
            M_{k-1} is frozen.
        weight: for each side, float [N], 1 for an object that takes part.
        strength: λ on mean ‖δ‖².
        rate: of the transform's optimiser.
        rows: at most how many objects of each side of a batch are looked at, the first ones: a
            batch's order is random.
    Source: [BC] Eq. (3).
    """

    def __init__(
        self,
        transform: Transform,
        loss: AlignmentLoss,
        past: Mapping[str, Tensor],
        weight: Mapping[str, Tensor],
        strength: float,
        rate: float,
        rows: int = 1024,
    ) -> None:
        super().__init__()
        self.transform = transform
        self.loss = loss
        self.strength = strength
        self.rate = rate
        self.rows = rows
        for side in SIDES:
            self.register_buffer(f"past_{side}", loss.lifted(past[side]), persistent=False)
            self.register_buffer(f"weight_{side}", weight[side], persistent=False)

    def forward(self, query: Tensor, candidate: Tensor, batch: Batch) -> Tensor:
        rows = {"query": batch.query[: self.rows], "candidate": batch.candidate[: self.rows]}
        embeddings = torch.cat([query[: self.rows], candidate[: self.rows]])
        past = torch.cat([self.get_buffer(f"past_{s}")[rows[s]] for s in SIDES])
        weight = torch.cat([self.get_buffer(f"weight_{s}")[rows[s]] for s in SIDES])
        loss: Tensor = self.loss(self.transform, embeddings, past, weight)
        return self.strength * loss + self.transform.penalty().to(loss)
