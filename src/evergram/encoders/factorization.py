"""Matrix factorization: one free vector for each entity."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from evergram.encoders.encoder import (
    SIDES,
    EntityInputs,
    RowEncoder,
    Scene,
    Schema,
    embedding_table,
    look_up,
)


class Factorization(RowEncoder):
    """u_a and v_b are rows of two tables; an unknown id has the zero vector.

    Args:
        scale: standard deviation of the initial rows.
        generator: draws them.
        folder: where the tables are mapped from files; None keeps them in memory.
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
        folder: Path | None = None,
    ) -> None:
        super().__init__(schema, dim, normalize)
        self.tables_folder = folder
        queries, candidates = (len(schema.ids(side)) for side in SIDES)
        self.query: nn.Embedding = embedding_table(queries, dim, scale, generator, folder)
        self.candidate: nn.Embedding = embedding_table(candidates, dim, scale, generator, folder)

    def _embed(self, side: str, inputs: EntityInputs) -> Tensor:
        table: nn.Embedding = self.query if side == "query" else self.candidate
        return look_up(table, inputs.ids, has_all=inputs.has_all_ids)

    @torch.no_grad()
    def rescale(self) -> None:
        """Set all rows to norm 1, which changes no embedding of unit norm; rows of zeros stay."""
        for table in (self.query, self.candidate):
            table.weight.copy_(nn.functional.normalize(table.weight, dim=1))

    def keyed(self) -> dict[str, str]:
        return {f"{side}.weight": self.schema.inputs[side]["id"] for side in SIDES}

    def known(self, side: str, scene: Scene) -> Tensor:
        return scene.inputs[side].ids >= 0
