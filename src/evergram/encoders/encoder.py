"""The interface of encoders, and the parts that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from evergram.data.corpus import Corpus
from evergram.encoders.features import SIDES, EntityInputs, Schema
from evergram.errors import ShapeError


@dataclass(frozen=True)
class Scene:
    """A corpus as an encoder sees it.

    Args:
        inputs: of each side, every entity's, N of them.
        graph: the interactions, see `graph.adjacency`; None for encoders that do not
            use them.
    """

    inputs: Mapping[str, EntityInputs]
    graph: Tensor | None = None

    def to(self, device: torch.device) -> Scene:
        inputs = {side: entities.to(device) for side, entities in self.inputs.items()}
        return Scene(inputs, None if self.graph is None else self.graph.to(device))


class Embeddings(ABC):
    """Embeddings of a scene at the current parameters of its encoder."""

    @abstractmethod
    def rows(self, side: str, ids: Tensor) -> Tensor:
        """Return [B, D] for rows [B] of a side, "query" or "candidate"; differentiable."""

    @abstractmethod
    def blocks(self, side: str, batch_size: int = 65_536) -> Iterator[Tensor]:
        """Iterate over all of a side in blocks [b, D], without gradient."""

    def whole(self, side: str) -> Tensor | None:
        """Return all of a side, [N, D], differentiable; None if that needs another forward pass."""
        return None


class Encoder(nn.Module, ABC):
    """Two sides of entities into one space of `dim` dimensions; the score is the inner product.

    Args:
        schema: its vocabularies; a key outside them contributes nothing.
        dim: D.
        normalize: True scales rows to unit norm; a zero row stays zero.
    """

    kind: str

    def __init__(self, schema: Schema, dim: int, normalize: bool = False) -> None:
        super().__init__()
        self.schema = schema
        self.dim = dim
        self.normalize = normalize

    @abstractmethod
    def forward(self, scene: Scene) -> Embeddings:
        """Return the embeddings of a scene; run computations that its entities share, once."""

    @abstractmethod
    def known(self, side: str, scene: Scene) -> Tensor:
        """Return bool [N], True for entities that the encoder has learned anything about."""

    def keyed(self) -> dict[str, str]:
        """Return, by parameter name, the vocabulary of each parameter with one row for each key."""
        return {}

    def start_from(self, other: Encoder) -> None:
        """Copy the parameters of another encoder; rows of keys that it lacks stay as they are.

        Raises: ShapeError: it has another architecture.
        """
        mine, theirs = self.state_dict(), other.state_dict()
        own_tables, their_tables = self.keyed(), other.keyed()
        if mine.keys() != theirs.keys() or own_tables != their_tables:
            raise ShapeError(
                f"A {self.kind} encoder cannot start from one with other parameters; set "
                "upgrade.start = 'fresh'."
            )
        for name, value in mine.items():
            known, rows = torch.arange(len(value)) if value.ndim else None, theirs[name]
            if name in own_tables:
                keys = self.schema.vocabularies[own_tables[name]].keys
                places = other.schema.vocabularies[own_tables[name]].rows(keys)
                known = torch.nonzero(places >= 0).flatten()
                rows = rows[places[known]]
            if rows.shape[1:] != value.shape[1:] or (known is not None and len(rows) != len(known)):
                raise ShapeError(
                    f"{name} is {list(value.shape)} here and {list(theirs[name].shape)} in the "
                    "encoder to start from; use the same dims and layers, or upgrade.start = "
                    "'fresh'."
                )
            if known is None:
                value.copy_(rows)
            else:
                value[known.to(value.device)] = rows.to(value)

    def feature_tables(self) -> list[nn.Parameter]:
        """Return the tables whose rows many entities share; a step of one row moves them all."""
        return []

    def read(self, corpus: Corpus) -> Scene:
        """Return the scene of a corpus, in its row order, on the CPU."""
        sides = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
        return Scene({side: self.schema.read(side, entities) for side, entities in sides})

    def embed_all(self, what: Corpus | Scene) -> dict[str, Tensor]:
        """Return all embeddings in evaluation mode, [N, D] of each side, without gradient.

        Those of a corpus are on the CPU, in its row order; those of a scene on its device.
        """
        scene = what if isinstance(what, Scene) else self.read(what).to(self.device)
        vectors: dict[str, Tensor] = {}
        with self.evaluating():
            embeddings: Embeddings = self(scene)
            for side in SIDES:
                blocks = list(embeddings.blocks(side))
                vectors[side] = torch.cat(blocks) if blocks else torch.zeros(0, self.dim)
        return vectors if isinstance(what, Scene) else {s: v.cpu() for s, v in vectors.items()}

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Enter evaluation mode without gradient; on leaving, the mode is as before."""
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train(training)

    def normalized(self, rows: Tensor) -> Tensor:
        """Return the rows, scaled to unit norm if the encoder normalises."""
        return functional.normalize(rows, dim=-1) if self.normalize else rows


def embedding_table(size: int, dim: int, scale: float, generator: torch.Generator) -> nn.Embedding:
    """Return a table [size, dim] of N(0, scale²) rows whose gradient has only the rows it read."""
    table = nn.Embedding(max(size, 1), dim, sparse=True)
    nn.init.normal_(table.weight, std=scale, generator=generator)
    return table


def look_up(table: nn.Embedding, ids: Tensor) -> Tensor:
    """Return rows of a table for ids [B], as [B, dim]; zeros for the id -1."""
    rows: Tensor = table(ids.clamp(min=0))
    return rows * (ids >= 0).unsqueeze(-1)
