"""GraphSAGE: each layer combines a node with the mean of its neighbours."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from evergram.encoders.encoder import Scene
from evergram.encoders.features import Schema
from evergram.encoders.graph.adjacency import neighbour_mean
from evergram.encoders.graph.graph_encoder import GraphEncoder, NodeInputs


class GraphSage(GraphEncoder):
    """h_i ← BatchNorm(W mean_{j ~ i} h_j + b + V h_i), with ReLU after each layer but the last.

    The same convolutions serve both sides. All queries start from one learned vector, so that its
    candidates define a query, and a new query has a vector too. Candidates start from the sum of
    the mean rows of their features; with `ids`, or without any feature, from the row of their id as
    well, which is zero for an id that came later. Queries that have features add them.

    Artefacts record the keyword arguments by these names, so they stay separate arguments.

    Args:
        generator: draws the initial parameters.
        layers: the number of convolutions.
        ids: True adds rows of their ids to candidates that have features; [BC] does not. Few
            features cannot tell candidates apart.
        width: of the first vectors and between layers; `dim` by default.
        scale: standard deviation of the initial tables and embeddings. [BC] has 1, the default of
            the libraries. The vector from which all queries start has 0.1, as in [BC]'s code.
        repeats: True makes an edge of each interaction, as [BC]'s code does; False one of each
            pair.
        normalize: True scales embeddings to unit norm.
    Source: Hamilton et al. 2017; as [BC] §5 and its authors' code have it.
    """

    kind = "graphsage"

    def __init__(
        self,
        schema: Schema,
        dim: int,
        *,
        generator: torch.Generator,
        layers: int = 2,
        ids: bool = False,
        width: int | None = None,
        scale: float = 0.1,
        repeats: bool = False,
        normalize: bool = False,
    ) -> None:
        super().__init__(schema, dim, layers, normalize, repeats=repeats)
        width = dim if width is None else width
        featured = set(schema.inputs["candidate"]) != {"id"}
        self.start: NodeInputs = NodeInputs(
            schema,
            width,
            ids=("candidate",) if ids or not featured else (),
            shared=("query",),
            scale=scale,
            generator=generator,
        )
        sizes = [*[width] * layers, dim]
        self.convolutions: nn.ModuleList = nn.ModuleList(
            _MeanConvolution(a, b, generator) for a, b in pairwise(sizes)
        )
        norms = [nn.BatchNorm1d(size) for size in sizes[1:]]
        # The last layer's outputs have this deviation for any inputs. Without it the initial scores
        # have a deviation of √D, from which squared losses do not recover.
        nn.init.constant_(norms[-1].weight, scale)
        self.norms: nn.ModuleList = nn.ModuleList(norms)

    def propagate(self, scene: Scene, graph: Tensor) -> Tensor:
        nodes: Tensor = self.start(scene)
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            nodes = norm(convolution(nodes, graph))
            if i + 1 < self.depth:
                nodes = nodes.relu()
        return nodes


class _MeanConvolution(nn.Module):
    """W mean_{j ~ i} h_j + b + V h_i, with the names and the start that PyTorch Geometric has."""

    def __init__(self, width: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.lin_l: nn.Linear = nn.Linear(width, dim)
        self.lin_r: nn.Linear = nn.Linear(width, dim, bias=False)
        bound = 1 / math.sqrt(width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def forward(self, nodes: Tensor, graph: Tensor) -> Tensor:
        combined: Tensor = self.lin_l(neighbour_mean(graph, nodes)) + self.lin_r(nodes)
        return combined
