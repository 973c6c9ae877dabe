"""LightGCN: free vectors, smoothed over the graph."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.encoders.encoder import Scene
from evergram.encoders.features import SIDES, Schema
from evergram.encoders.graph.adjacency import neighbour_balanced
from evergram.encoders.graph.graph_encoder import GraphEncoder, NodeInputs


class LightGCN(GraphEncoder):
    """The mean of h⁰ … h^K, with h^{k+1}_i = Σ_{j ~ i} h^k_j / √(deg i · deg j).

    h⁰ is an entity's own row plus the mean rows of its features. A candidate that came later starts
    from its features and a query that came later from zero; both get their neighbours' vectors.

    Args:
        generator: draws the initial tables.
        layers: K.
        scale: standard deviation of the initial tables.
        normalize: True scales embeddings to unit norm.
    Source: He et al. 2020, Eq. (3), (4).
    """

    kind = "lightgcn"

    def __init__(
        self,
        schema: Schema,
        dim: int,
        *,
        generator: torch.Generator,
        layers: int = 3,
        scale: float = 0.1,
        normalize: bool = False,
    ) -> None:
        super().__init__(schema, dim, layers, normalize)
        self.start: NodeInputs = NodeInputs(
            schema, dim, ids=SIDES, scale=scale, generator=generator
        )

    def propagate(self, scene: Scene, graph: Tensor) -> Tensor:
        nodes: Tensor = self.start(scene)
        total = nodes
        for _ in range(self.depth):
            nodes = neighbour_balanced(graph, nodes)
            total = total + nodes
        return total / (self.depth + 1)
