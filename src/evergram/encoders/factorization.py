"""Matrix factorization: one free vector for each entity."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evergram.encoders.encoder import Scene, embedding_table, look_up
from evergram.encoders.features import SIDES, EntityInputs, Schema
from evergram.encoders.row_encoder import RowEncoder


class Factorization(RowEncoder):
    """u_a and v_b are rows of two tables; an unknown id has the zero vector.

    Args:
        scale: standard deviation of the initial rows.
        generator: draws them.
    """

    kind = "factorization"

    def __init__(
        self,
        schema: Schema,
        dim: int,
        *,
        generator: torch.Generator,
        scale: float = 0.1,
        normalize: bool = False,
    ) -> None:
        super().__init__(schema, dim, normalize)
        self.query = embedding_table(len(schema.ids("query")), dim, scale, generator)
        self.candidate = embedding_table(len(schema.ids("candidate")), dim, scale, generator)

    def _embed(self, side: str, inputs: EntityInputs) -> Tensor:
        table: nn.Embedding = self.query if side == "query" else self.candidate
        return look_up(table, inputs.ids)

    def keyed(self) -> dict[str, str]:
        return {f"{side}.weight": self.schema.inputs[side]["id"] for side in SIDES}

    def known(self, side: str, scene: Scene) -> Tensor:
        return scene.inputs[side].ids >= 0
