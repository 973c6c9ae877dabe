"""Encoders of tables: a free vector for each entity; or ids and bags of features through layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from evergram.encoders.encoder import (
    SIDES,
    EntityInputs,
    RowEncoder,
    Scene,
    Schema,
    embedding_table,
    look_up,
    table_name,
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


class TwoTower(RowEncoder):
    """x + f(x): x is the sum of an entity's input embeddings, f hidden layers with ReLU.

    It starts as a factorization, with the features' tables and the last layer of f at zero. The
    contributions of features and hidden layers then grow in steps small enough for a moving average
    of Gramians to follow.

    With `residual` false it is f(x) alone, every table and layer drawn at random: the tower of [G1]
    §4 and [G2] §4.1, with `concatenate` and two hidden layers.

    Inputs of one vocabulary share a table, on one side or across both. A bag is the mean of its
    keys' rows; an empty bag and an unknown id are zero, so that features alone place an unseen id.
    A number or a time is the row of its bucket; a missing one has a row of its own.

    Artefacts record the keyword arguments by these names, so they stay separate arguments.

    Args:
        generator: draws the initial parameters.
        input_dim: width of x; `dim` by default. x of another width enters the sum through a learned
            matrix to `dim`, which starts orthogonal and the same on both sides.
        hidden: widths of the hidden layers; without any the embedding is x.
        residual: whether x is added to f(x).
        concatenate: whether x is an entity's input embeddings one after the other, not their sum;
            needs `residual` false.
        scale: standard deviation of the initial id tables; of all tables where `residual` is false.
        normalize: True scales embeddings to unit norm.
        folder: where the tables are mapped from files; None keeps them in memory.
    """

    kind = "two_tower"

    def __init__(
        self,
        schema: Schema,
        dim: int,
        *,
        generator: torch.Generator,
        input_dim: int | None = None,
        hidden: Sequence[int] = (64,),
        residual: bool = True,
        concatenate: bool = False,
        scale: float = 0.1,
        normalize: bool = False,
        folder: Path | None = None,
    ) -> None:
        super().__init__(schema, dim, normalize)
        self.tables_folder = folder
        width = dim if input_dim is None else input_dim
        self.residual = residual
        self.concatenate = concatenate
        ids = {schema.inputs[side]["id"] for side in SIDES}
        # A module's name may not hold a dot.
        self.tables: nn.ModuleDict = nn.ModuleDict(
            {
                table_name(name): embedding_table(
                    len(keys),
                    width,
                    scale if name in ids or not residual else 0.0,
                    generator,
                    folder,
                )
                for name, keys in schema.vocabularies.items()
            }
        )
        self.skip: nn.ModuleDict = nn.ModuleDict()
        if residual and width != dim:
            # One start for both sides: their inner products are those of their inputs.
            start = nn.init.orthogonal_(torch.empty(dim, width), generator=generator)
            for side in SIDES:
                self.skip[side] = nn.Linear(width, dim, bias=False)
                self.skip[side].weight = nn.Parameter(start.clone())
        self.hidden: nn.ModuleDict = nn.ModuleDict()
        for side in SIDES if hidden or not residual else ():
            inputs = len(schema.inputs[side]) if concatenate else 1
            self.hidden[side] = _layers(inputs * width, hidden, dim, generator, zero=residual)

    def keyed(self) -> dict[str, str]:
        return {f"tables.{table_name(name)}.weight": name for name in self.schema.vocabularies}

    def feature_tables(self) -> list[nn.Parameter]:
        ids = {table_name(self.schema.inputs[side]["id"]) for side in SIDES}
        return [p for n, t in self.tables.items() if n not in ids for p in t.parameters()]

    def _embed(self, side: str, inputs: EntityInputs) -> Tensor:
        x = self._input(side, inputs)
        if not self.residual:
            output: Tensor = self.hidden[side](x)
            return output
        embeddings: Tensor = self.skip[side](x) if side in self.skip else x
        return embeddings + self.hidden[side](x) if side in self.hidden else embeddings

    def _input(self, side: str, inputs: EntityInputs) -> Tensor:
        """Return x."""
        parts: list[Tensor] = []
        for name, vocabulary in self.schema.inputs[side].items():
            table = self.tables[table_name(vocabulary)]
            assert isinstance(table, nn.Embedding)
            if name == "id":
                parts.append(look_up(table, inputs.ids, has_all=inputs.has_all_ids))
                continue
            of_missing = self.schema.vocabularies[vocabulary].row_of_missing
            indices, offsets = inputs.bag(name, of_missing)
            parts.append(
                functional.embedding_bag(
                    indices, table.weight, offsets[:-1], mode="mean", sparse=True
                )
            )
        return torch.cat(parts, dim=-1) if self.concatenate else sum(parts[1:], start=parts[0])


def _layers(
    width: int, hidden: Sequence[int], dim: int, generator: torch.Generator, *, zero: bool
) -> nn.Sequential:
    """Return linear layers [width] → hidden → [dim] with ReLU between.

    Args:
        zero: whether the last starts at zero.
    """
    layers: list[nn.Module] = []
    for size in hidden:
        layer = nn.Linear(width, size)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU(inplace=True)]
        width = size
    last = nn.Linear(width, dim)
    if zero:
        nn.init.zeros_(last.weight)
    else:
        nn.init.xavier_normal_(last.weight, generator=generator)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)
