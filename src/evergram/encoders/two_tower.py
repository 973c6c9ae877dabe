"""Ids and bags of features through a tower of layers for each side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from evergram.encoders.encoder import Encoder, embedding_table, look_up
from evergram.encoders.features import SIDES, Inputs, Schema


class TwoTower(Encoder):
    """Input embeddings, concatenated, then hidden layers with ReLU and a linear output.

    The concatenation also reaches the output by a linear layer of its own, so that a tower starts
    as a factorization and what its hidden layers add is learned on top.

    Inputs of one vocabulary share a table, on one side or across both. A bag is the mean of its
    keys' rows; an empty bag and an unknown id are zero.

    Args:
        input_dim: width of each input embedding.
        hidden: widths of the hidden layers; none gives a linear tower.
        scale: standard deviation of the tables' start.
        generator: draws the start.
    """

    kind = "two_tower"

    def __init__(
        self,
        schema: Schema,
        dim: int,
        *,
        generator: torch.Generator,
        input_dim: int = 64,
        hidden: Sequence[int] = (128,),
        scale: float = 0.1,
    ) -> None:
        super().__init__(schema, dim)
        # A module's name may not hold a dot.
        self.tables = nn.ModuleDict(
            {
                _key(name): embedding_table(len(vocabulary), input_dim, scale, generator)
                for name, vocabulary in schema.vocabularies.items()
            }
        )
        self.skip = nn.ModuleDict()
        self.tower = nn.ModuleDict()
        for side in SIDES:
            width = input_dim * len(schema.inputs[side])
            self.skip[side] = _linear(width, dim, generator)
            layers: list[nn.Module] = []
            for size in hidden:
                layers += [_linear(width, size, generator), nn.ReLU()]
                width = size
            if layers:
                self.tower[side] = nn.Sequential(*layers, _linear(width, dim, generator))

    def embed(self, side: str, inputs: Inputs) -> Tensor:
        columns: list[Tensor] = []
        for name, vocabulary in self.schema.inputs[side].items():
            table = self.tables[_key(vocabulary)]
            assert isinstance(table, nn.Embedding)
            if name == "id":
                columns.append(look_up(table, inputs.ids))
                continue
            indices, offsets = inputs.bags[name]
            columns.append(
                functional.embedding_bag(
                    indices, table.weight, offsets[:-1], mode="mean", sparse=True
                )
            )
        joined = torch.cat(columns, dim=-1)
        embeddings: Tensor = self.skip[side](joined)
        return embeddings + self.tower[side](joined) if side in self.tower else embeddings


def _key(vocabulary: str) -> str:
    return vocabulary.replace(".", "/")


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="linear", generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
