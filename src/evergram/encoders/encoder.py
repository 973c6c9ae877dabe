"""What every encoder does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from evergram.data.corpus import Side
from evergram.encoders.features import Inputs, Schema
from evergram.errors import ShapeError


class Encoder(nn.Module, ABC):
    """Two sides of entities into one space of `dim` dimensions; the score is the inner product.

    Args:
        schema: the vocabularies it has; a key outside them contributes nothing.
        dim: D.
        normalize: whether rows have unit norm (a row that is zero stays zero).
    """

    kind: str

    def __init__(self, schema: Schema, dim: int, normalize: bool = False) -> None:
        super().__init__()
        self.schema = schema
        self.dim = dim
        self.normalize = normalize

    def embed(self, side: str, inputs: Inputs) -> Tensor:
        """[B, D] of B inputs of a side, "query" or "candidate"; differentiable."""
        rows = self._embed(side, inputs)
        return functional.normalize(rows, dim=-1) if self.normalize else rows

    @abstractmethod
    def _embed(self, side: str, inputs: Inputs) -> Tensor:
        """`embed`, before it is normalised."""

    def keyed(self) -> dict[str, str]:
        """Name of each parameter that has a row a key, and the vocabulary of its keys."""
        return {}

    def start_from(self, other: Encoder) -> None:
        """Take over what another encoder of this architecture has learned; the rows of keys that
        it does not know stay as they are.

        Raises: ShapeError: it is of another architecture.
        """
        mine, theirs = self.state_dict(), other.state_dict()
        own_tables, their_tables = self.keyed(), other.keyed()
        if mine.keys() != theirs.keys() or own_tables != their_tables:
            raise ShapeError(
                f"A {self.kind} encoder cannot go on from one with other parts; use "
                "upgrade.start = 'fresh'."
            )
        for name, value in mine.items():
            known, rows = torch.arange(len(value)) if value.ndim else None, theirs[name]
            if name in own_tables:
                keys = self.schema.vocabularies[own_tables[name]].keys
                found = other.schema.vocabularies[own_tables[name]].rows(keys)
                known = torch.nonzero(found >= 0).flatten()
                rows = rows[found[known]]
            if rows.shape[1:] != value.shape[1:] or (known is not None and len(rows) != len(known)):
                raise ShapeError(
                    f"{name} is {list(value.shape)} here and {list(theirs[name].shape)} in the "
                    "encoder to go on from; use the same dims and layers, or upgrade.start = "
                    "'fresh'."
                )
            if known is None:
                value.copy_(rows)
            else:
                value[known.to(value.device)] = rows.to(value)

    def feature_tables(self) -> list[nn.Parameter]:
        """Tables whose rows many entities share: a step of one moves them all."""
        return []

    def known(self, side: str, inputs: Inputs) -> Tensor:
        """bool [B]: whether the encoder has learned anything to tell this entity by."""
        known = inputs.ids >= 0
        for _, offsets in inputs.bags.values():
            known = known | (offsets[1:] > offsets[:-1])
        return known

    def blocks(self, side: str, inputs: Inputs, batch_size: int = 65_536) -> Iterator[Tensor]:
        """Embeddings of all `inputs` in blocks [b, D], without gradient, in evaluation mode."""
        training = self.training
        self.eval()
        device = next(self.parameters()).device
        with torch.no_grad():
            for start in range(0, len(inputs), batch_size):
                rows = torch.arange(
                    start, min(start + batch_size, len(inputs)), device=inputs.ids.device
                )
                yield self.embed(side, inputs.take(rows).to(device))
        self.train(training)

    def encode(self, side: str, entities: Side, batch_size: int = 65_536) -> Tensor:
        """Embeddings [N, D] of a corpus's side, in its row order, on the CPU."""
        inputs = self.schema.read(side, entities)
        found = [block.cpu() for block in self.blocks(side, inputs, batch_size)]
        return torch.cat(found) if found else torch.zeros(0, self.dim)

    def encode_query(self, entities: Side, batch_size: int = 65_536) -> Tensor:
        """[N, D] of the query side, see `encode`."""
        return self.encode("query", entities, batch_size)

    def encode_candidate(self, entities: Side, batch_size: int = 65_536) -> Tensor:
        """[N, D] of the candidate side, see `encode`."""
        return self.encode("candidate", entities, batch_size)


def embedding_table(size: int, dim: int, scale: float, generator: torch.Generator) -> nn.Embedding:
    """A table [size, dim] of N(0, scale²) rows whose gradient touches only the rows it read."""
    table = nn.Embedding(max(size, 1), dim, sparse=True)
    nn.init.normal_(table.weight, std=scale, generator=generator)
    return table


def look_up(table: nn.Embedding, ids: Tensor) -> Tensor:
    """Rows of a table [B, dim]; zeros for the id -1."""
    found: Tensor = table(ids.clamp(min=0))
    return found * (ids >= 0).unsqueeze(-1)
