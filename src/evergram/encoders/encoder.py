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
from evergram.encoders.features import SIDES, Inputs, Schema


@dataclass(frozen=True)
class Reading:
    """A corpus as an encoder sees it.

    Args:
        inputs: of each side, every entity's, N of them.
        graph: who met whom, see `evergram.encoders.adjacency`; None where the encoder has no use
            for it.
    """

    inputs: Mapping[str, Inputs]
    graph: Tensor | None = None

    def to(self, device: torch.device) -> Reading:
        inputs = {side: found.to(device) for side, found in self.inputs.items()}
        return Reading(inputs, None if self.graph is None else self.graph.to(device))


class Embeddings(ABC):
    """Embeddings of a reading at the parameters that its encoder has now."""

    @abstractmethod
    def rows(self, side: str, ids: Tensor) -> Tensor:
        """[B, D] of rows of a side, "query" or "candidate"; differentiable."""

    @abstractmethod
    def blocks(self, side: str, batch_size: int = 65_536) -> Iterator[Tensor]:
        """All of a side in blocks [b, D], without gradient."""


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
    def forward(self, reading: Reading) -> Embeddings:
        """Embeddings of a reading; what entities share is computed here, once for all of them."""

    @abstractmethod
    def known(self, side: str, reading: Reading) -> Tensor:
        """bool [N]: whether the encoder has learned anything to tell each entity by."""

    def feature_tables(self) -> list[nn.Parameter]:
        """Tables whose rows many entities share: a step of one moves them all."""
        return []

    def read(self, corpus: Corpus) -> Reading:
        """Any corpus, in its row order, on the CPU."""
        sides = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
        return Reading({side: self.schema.read(side, entities) for side, entities in sides})

    def embed_all(self, what: Corpus | Reading) -> dict[str, Tensor]:
        """Every entity's embedding in evaluation mode, [N, D] of each side, without gradient.

        Of a corpus on the CPU, in its row order; of a reading where that is.
        """
        reading = what if isinstance(what, Reading) else self.read(what).to(self.device)
        found: dict[str, Tensor] = {}
        with self.evaluating():
            embeddings: Embeddings = self(reading)
            for side in SIDES:
                blocks = list(embeddings.blocks(side))
                found[side] = torch.cat(blocks) if blocks else torch.zeros(0, self.dim)
        return found if isinstance(what, Reading) else {s: v.cpu() for s, v in found.items()}

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
