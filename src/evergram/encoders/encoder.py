"""What every encoder does."""

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
        graph: who met whom, see `evergram.encoders.adjacency`; None where the encoder has no use
            for it.
    """

    inputs: Mapping[str, EntityInputs]
    graph: Tensor | None = None

    def to(self, device: torch.device) -> Scene:
        inputs = {side: found.to(device) for side, found in self.inputs.items()}
        return Scene(inputs, None if self.graph is None else self.graph.to(device))


class Embeddings(ABC):
    """Embeddings of a scene at the parameters that its encoder has now."""

    @abstractmethod
    def rows(self, side: str, ids: Tensor) -> Tensor:
        """[B, D] of rows of a side, "query" or "candidate"; differentiable."""

    @abstractmethod
    def blocks(self, side: str, batch_size: int = 65_536) -> Iterator[Tensor]:
        """All of a side in blocks [b, D], without gradient."""

    def whole(self, side: str) -> Tensor | None:
        """All of a side, [N, D], differentiable, where that costs nothing more; else None."""
        return None


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

    @abstractmethod
    def forward(self, scene: Scene) -> Embeddings:
        """Embeddings of a scene; what entities share is computed here, once for all of them."""

    @abstractmethod
    def known(self, side: str, scene: Scene) -> Tensor:
        """bool [N]: whether the encoder has learned anything to tell each entity by."""

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

    def read(self, corpus: Corpus) -> Scene:
        """Any corpus, in its row order, on the CPU."""
        sides = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
        return Scene({side: self.schema.read(side, entities) for side, entities in sides})

    def embed_all(self, what: Corpus | Scene) -> dict[str, Tensor]:
        """Every entity's embedding in evaluation mode, [N, D] of each side, without gradient.

        Of a corpus on the CPU, in its row order; of a scene where that is.
        """
        scene = what if isinstance(what, Scene) else self.read(what).to(self.device)
        found: dict[str, Tensor] = {}
        with self.evaluating():
            embeddings: Embeddings = self(scene)
            for side in SIDES:
                blocks = list(embeddings.blocks(side))
                found[side] = torch.cat(blocks) if blocks else torch.zeros(0, self.dim)
        return found if isinstance(what, Scene) else {s: v.cpu() for s, v in found.items()}

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode and no gradient; after it, as it was."""
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train(training)

    def normalized(self, rows: Tensor) -> Tensor:
        """Rows of unit norm, where the encoder is to have them."""
        return functional.normalize(rows, dim=-1) if self.normalize else rows


def embedding_table(size: int, dim: int, scale: float, generator: torch.Generator) -> nn.Embedding:
    """A table [size, dim] of N(0, scale²) rows whose gradient touches only the rows it read."""
    table = nn.Embedding(max(size, 1), dim, sparse=True)
    nn.init.normal_(table.weight, std=scale, generator=generator)
    return table


def look_up(table: nn.Embedding, ids: Tensor) -> Tensor:
    """Rows of a table [B, dim]; zeros for the id -1."""
    found: Tensor = table(ids.clamp(min=0))
    return found * (ids >= 0).unsqueeze(-1)
