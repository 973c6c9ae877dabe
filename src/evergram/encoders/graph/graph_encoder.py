"""Encoders that embed each entity from the graph of all interactions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Embeddings, Encoder, Scene
from evergram.encoders.features import SIDES, Schema, table_name
from evergram.encoders.graph.adjacency import adjacency, neighbour_sum

# The deviation at the start of a vector that all nodes of a side share, as in the code of [BC].
SHARED_SCALE = 0.1


class GraphEncoder(Encoder):
    """Embeddings come from one pass over the graph of a corpus's own interactions.

    The graph is that of the corpus that it is applied to: an entity that came after training has a
    vector once it is connected to a known one, so a published encoder follows a growing corpus.

    Args:
        depth: the number of edges that a pass reaches over.
        repeats: True makes an edge of each interaction, so that a neighbour counts as often as it
            was met; False one of each pair.
    """

    # The nodes' first vectors; subclasses set it.
    start: NodeInputs

    def __init__(
        self,
        schema: Schema,
        dim: int,
        depth: int,
        normalize: bool = False,
        *,
        repeats: bool = False,
    ) -> None:
        super().__init__(schema, dim, normalize)
        self.depth = depth
        self.repeats = repeats

    @abstractmethod
    def propagate(self, scene: Scene, graph: Tensor) -> Tensor:
        """Return [N, D] of all nodes, queries first, not normalised yet; differentiable."""

    def keyed(self) -> dict[str, str]:
        return {f"start.{name}": vocabulary for name, vocabulary in self.start.keyed().items()}

    def read(self, corpus: Corpus) -> Scene:
        return Scene(super().read(corpus).inputs, adjacency(corpus, repeats=self.repeats))

    def forward(self, scene: Scene) -> Embeddings:
        assert scene.graph is not None  # `read` has made it
        nodes = self.normalized(self.propagate(scene, scene.graph))
        sizes = [len(scene.inputs[side]) for side in SIDES]
        return _Whole(dict(zip(SIDES, torch.split(nodes, sizes), strict=True)))

    def known(self, side: str, scene: Scene) -> Tensor:
        assert scene.graph is not None
        reached = torch.cat([scene.inputs[s].is_known for s in SIDES]).float()[:, None]
        for _ in range(self.depth):
            reached = reached + neighbour_sum(scene.graph, reached).clamp(max=1)
        queries = len(scene.inputs["query"])
        reached = reached[:queries] if side == "query" else reached[queries:]
        return reached[:, 0] > 0


class _Whole(Embeddings):
    """Embeddings of all nodes, computed in one pass."""

    def __init__(self, nodes: dict[str, Tensor]) -> None:
        self.nodes = nodes

    def rows(self, side: str, ids: Tensor) -> Tensor:
        return self.nodes[side][ids]

    def blocks(self, side: str, batch_size: int = 65_536) -> Iterator[Tensor]:
        yield from torch.split(self.nodes[side].detach(), batch_size)

    def whole(self, side: str) -> Tensor | None:
        return self.nodes[side]


class NodeInputs(nn.Module):
    """The nodes' first vectors, [N, width]: a sum of up to three parts.

    They are the mean row of each of the node's bags of features; on the sides of `ids` its id's
    row; and on the sides of `shared` one vector for all. An unknown id and an empty bag are zero.
    Tables are not `nn.Embedding`s: a pass over the graph reads every row, and Adam trains them like
    layers.
    """

    def __init__(
        self,
        schema: Schema,
        width: int,
        *,
        ids: Collection[str],
        shared: Collection[str] = (),
        scale: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.schema = schema
        self.ids: frozenset[str] = frozenset(ids)
        used = {
            vocabulary: len(schema.vocabularies[vocabulary])
            for side in SIDES
            for name, vocabulary in schema.inputs[side].items()
            if name != "id" or side in self.ids
        }
        # A parameter's name may not hold a dot.
        self.tables: nn.ParameterDict = nn.ParameterDict(
            {
                table_name(name): nn.Parameter(
                    torch.randn(max(size, 1), width, generator=generator) * scale
                )
                for name, size in used.items()
            }
        )
        self.shared: nn.ParameterDict = nn.ParameterDict(
            {
                side: nn.Parameter(torch.randn(width, generator=generator) * SHARED_SCALE)
                for side in SIDES
                if side in shared
            }
        )
        self.width = width

    def keyed(self) -> dict[str, str]:
        """Return, by parameter name, the vocabulary of each parameter with one row for each key."""
        named = ((table_name(vocabulary), vocabulary) for vocabulary in self.schema.vocabularies)
        return {f"tables.{name}": v for name, v in named if name in self.tables}

    def forward(self, scene: Scene) -> Tensor:
        return torch.cat([self._side(side, scene) for side in SIDES])

    def _side(self, side: str, scene: Scene) -> Tensor:
        inputs = scene.inputs[side]
        summed = next(self.parameters()).new_zeros(len(inputs), self.width)
        if side in self.shared:
            summed = summed + self.shared[side]
        for name, vocabulary in self.schema.inputs[side].items():
            if name == "id":
                if side in self.ids:
                    rows = functional.embedding(
                        inputs.ids.clamp(min=0), self.tables[table_name(vocabulary)]
                    )
                    summed = summed + rows * (inputs.ids >= 0)[:, None]
                continue
            of_missing = self.schema.vocabularies[vocabulary].row_of_missing
            indices, offsets = inputs.bag(name, of_missing)
            summed = summed + functional.embedding_bag(
                indices, self.tables[table_name(vocabulary)], offsets[:-1], mode="mean"
            )
        return summed
