"""Alignment to the version before, trained together with an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.compatibility.alignment_loss import AlignmentLoss
from evergram.compatibility.transforms import Transform
from evergram.data.sampling import Batch
from evergram.encoders.encoder import Embeddings
from evergram.encoders.features import SIDES
from evergram.training.step import Joint


@dataclass(frozen=True)
class JointAlignmentSettings:
    """How the alignment is trained together with a model.

    Args:
        strength: λ on mean ‖δ‖².
        rate: of the transform's optimiser.
        objects: "batch": the loss is over a batch's own objects; "uniform": over objects drawn
            uniformly among all that take part, whatever the batch. A graph encoder has them at
            hand.
        rows: at most how many of each side enter the loss in a step.
        seed: of the draws.
    """

    strength: float
    rate: float = 3e-3
    objects: str = "batch"
    rows: int = 512
    seed: int = 0


class JointAlignment(Joint):
    """Returns λ times the alignment loss of B_k, over objects that version k-1 knows.

    Args:
        transform: B_k, trained here.
        loss: of errors of z_{k-1}.
        past: for each side, z_{k-1} [N, D_{k-1}] of the training corpus's entities, computed once:
            M_{k-1} is frozen.
        weight: for each side, float [N], 1 for an object that takes part.
    Source: [BC] Eq. (3); its authors' code has the objects of the batch.
    """

    def __init__(
        self,
        transform: Transform,
        loss: AlignmentLoss,
        past: Mapping[str, Tensor],
        weight: Mapping[str, Tensor],
        settings: JointAlignmentSettings,
    ) -> None:
        super().__init__()
        self.transform = transform
        self.loss = loss
        self.settings = settings
        self.rate = settings.rate
        for side in SIDES:
            self.register_buffer(f"lifted_{side}", loss.lifted(past[side]), persistent=False)
            self.register_buffer(f"weight_{side}", weight[side], persistent=False)
            known = torch.nonzero(weight[side]).flatten()
            self.register_buffer(f"known_{side}", known, persistent=False)
        self.steps: Tensor
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(
        self, query: Tensor, candidate: Tensor, batch: Batch, embeddings: Embeddings
    ) -> Tensor:
        limit = self.settings.rows
        if self.settings.objects == "batch":
            rows = {"query": batch.query[:limit], "candidate": batch.candidate[:limit]}
            aligned = torch.cat([query[:limit], candidate[:limit]])
        else:
            rows = {side: self._draw(side) for side in SIDES}
            aligned = torch.cat([embeddings.rows(side, rows[side]) for side in SIDES])
        weight = self._cat("weight", rows)
        self.steps += 1
        loss: Tensor = self.loss(self.transform, aligned, self._cat("lifted", rows), weight)
        return self.settings.strength * loss + self.transform.penalty().to(loss)

    def _cat(self, name: str, rows: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([self.get_buffer(f"{name}_{s}")[rows[s]] for s in SIDES])

    def _draw(self, side: str) -> Tensor:
        known = self.get_buffer(f"known_{side}")
        if len(known) <= self.settings.rows:
            return known
        seed = self.settings.seed * 1_000_003 + int(self.steps) * 2 + SIDES.index(side)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(len(known), (self.settings.rows,), generator=generator)
        return known[drawn.to(known.device)]
