"""Encoders that embed each entity from its own id and features."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from evergram.data.corpus import Side
from evergram.encoders.embedding_tables import ROWS, join_blocks
from evergram.encoders.encoder import Embeddings, Encoder, Scene
from evergram.encoders.features import EntityInputs
from evergram.encoders.popularity_factor import scaled_blocks


class RowEncoder(Encoder):
    """An encoder whose embedding of an entity depends on that entity's id and features alone.

    Any B entities can be embedded without the others.
    """

    def embed(self, side: str, inputs: EntityInputs) -> Tensor:
        """Return [B, D] for B inputs of a side, "query" or "candidate", as the loss sees them;
        differentiable."""
        with self.mixed_precision():
            rows = self._embed(side, inputs)
        return self.normalized(rows.to(torch.promote_types(rows.dtype, torch.float32)))

    @abstractmethod
    def _embed(self, side: str, inputs: EntityInputs) -> Tensor:
        """Do what `embed` does, without the normalisation."""

    def forward(self, scene: Scene) -> Embeddings:
        return _ByRow(self, scene)

    def known(self, side: str, scene: Scene) -> Tensor:
        return scene.inputs[side].is_known

    def blocks(self, side: str, inputs: EntityInputs, batch_size: int = ROWS) -> Iterator[Tensor]:
        """Iterate over all embeddings as a version publishes them, in blocks [b, D], without
        gradient, in evaluation mode."""
        blocks = self.blocks_of_loss(side, inputs, batch_size)
        if side == "query" or self.popularity is None:
            return blocks
        return scaled_blocks(blocks, self.popularity.factors(inputs.ids))

    def blocks_of_loss(self, side: str, inputs: EntityInputs, batch_size: int) -> Iterator[Tensor]:
        """Do what `blocks` does for embeddings as the loss sees them."""
        for start in range(0, len(inputs), batch_size):
            stop = min(start + batch_size, len(inputs))
            rows = torch.arange(start, stop, device=inputs.ids.device)
            with self.evaluating():
                block = self.embed(side, inputs.take(rows).to(self.device))
            yield block

    def encode(self, side: str, entities: Side, batch_size: int = ROWS) -> Tensor:
        """Return embeddings [N, D] of a corpus's side as a version publishes them, in its row
        order, on the CPU."""
        inputs = self.schema.read(side, entities)
        blocks = (block.cpu() for block in self.blocks(side, inputs, batch_size))
        return join_blocks(blocks, len(inputs), self.dim)


class _ByRow(Embeddings):
    """Embeddings that are computed on demand."""

    def __init__(self, encoder: RowEncoder, scene: Scene) -> None:
        self.encoder = encoder
        self.scene = scene

    def rows(self, side: str, ids: Tensor) -> Tensor:
        return self.encoder.embed(side, self.scene.inputs[side].take(ids))

    def blocks(self, side: str, batch_size: int = ROWS) -> Iterator[Tensor]:
        return self.encoder.blocks_of_loss(side, self.scene.inputs[side], batch_size)
