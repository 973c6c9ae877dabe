"""Graph encoders: an entity's vector depends on its neighbours in the graph of interactions."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from evergram.data.corpus import Corpus, offsets_of
from evergram.encoders.encoder import SIDES, Embeddings, Encoder, Scene, Schema, table_name


def adjacency(corpus: Corpus, *, repeats: bool = False) -> Tensor:
    """Return the graph of a corpus: its nodes are queries, then candidates; its edges are pairs.

    Args:
        repeats: True makes an edge of each interaction, False of each distinct pair.
    Returns: symmetric sparse CSR [N, N] of ones, N = queries + candidates, with each edge in both
        directions. Symmetry makes the backward pass as fast as the forward pass.
    """
    queries = len(corpus.queries)
    size = queries + len(corpus.candidates)
    pairs = corpus.column("query") * size + queries + corpus.column("candidate")
    if not repeats:
        pairs = torch.unique(pairs)
    start, end = pairs // size, pairs % size
    keys, _ = torch.sort(torch.cat([pairs, end * size + start]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(
            # The kernels use int32 and would convert int64 in each product.
            offsets_of(torch.bincount(keys // size, minlength=size)).int(),
            (keys % size).int(),
            torch.ones(len(keys)),
            (size, size),
            check_invariants=False,
        )


def degrees(matrix: Tensor) -> Tensor:
    """Return the number of edges of each node, int32 [N]."""
    return matrix.crow_indices().diff()


class _Sum(torch.autograd.Function):
    """A x for a symmetric A; the gradient is A g, without a transpose."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, nodes: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix @ nodes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix @ grad.contiguous()


def neighbour_sum(matrix: Tensor, nodes: Tensor) -> Tensor:
    """Return Σ_{j ~ i} x_j, [N, D]."""
    total: Tensor = _Sum.apply(matrix.to(nodes.dtype), nodes)  # type: ignore[no-untyped-call]
    return total


def neighbour_mean(matrix: Tensor, nodes: Tensor) -> Tensor:
    """Return the mean of each node's neighbours, [N, D]; zeros for a node without any."""
    return neighbour_sum(matrix, nodes) / degrees(matrix).clamp(min=1).to(nodes)[:, None]


def neighbour_balanced(matrix: Tensor, nodes: Tensor) -> Tensor:
    """Return Σ_{j ~ i} x_j / √(deg i · deg j), [N, D]; zeros for a node without neighbours."""
    scale = degrees(matrix).clamp(min=1).to(nodes).rsqrt()[:, None]
    return neighbour_sum(matrix, nodes * scale) * scale


# The initial standard deviation of a vector that all nodes of a side share, as in [BC]'s code.
SHARED_SCALE = 0.1


class GraphEncoder(Encoder):
    """Computes all embeddings in one pass over the graph of a corpus's interactions.

    The graph comes from the corpus that the encoder is applied to, not from training. A new entity
    has a vector once it is connected to a known one, so a published encoder follows a growing
    corpus.

    Args:
        depth: the length of the longest path that a pass follows, in edges.
        repeats: True makes an edge of each interaction, so that repeated pairs count more; False
            makes one of each distinct pair.
    """

    # The initial vectors of nodes; set by subclasses.
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
        """Return the vectors [N, D] of all nodes, queries first, before normalisation."""

    def keyed(self) -> dict[str, str]:
        return {f"start.{name}": vocabulary for name, vocabulary in self.start.keyed().items()}

    def read(self, corpus: Corpus) -> Scene:
        return Scene(super().read(corpus).inputs, adjacency(corpus, repeats=self.repeats))

    def forward(self, scene: Scene) -> Embeddings:
        assert scene.graph is not None  # set by `read`
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
    """The embeddings of all nodes, computed in one pass."""

    def __init__(self, nodes: dict[str, Tensor]) -> None:
        self.nodes = nodes

    def rows(self, side: str, ids: Tensor) -> Tensor:
        return self.nodes[side][ids]

    def blocks(self, side: str, batch_size: int = 65_536) -> Iterator[Tensor]:
        yield from torch.split(self.nodes[side].detach(), batch_size)

    def whole(self, side: str) -> Tensor | None:
        return self.nodes[side]


class NodeInputs(nn.Module):
    """The initial vectors of nodes, [N, width]: a sum of up to three terms.

    The terms are the mean row of each bag of features, the row of the id (on the sides `ids`), and
    a vector that all nodes share (on the sides `shared`). An unknown id and an empty bag are zero.
    Tables are parameters, not `nn.Embedding`s: a pass over the graph reads every row, and Adam
    trains them like layers.
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
        """Return parameter name to vocabulary name, for parameters with a row for each key."""
        names = ((table_name(vocabulary), vocabulary) for vocabulary in self.schema.vocabularies)
        return {f"tables.{name}": v for name, v in names if name in self.tables}

    def forward(self, scene: Scene) -> Tensor:
        return torch.cat([self._side(side, scene) for side in SIDES])

    def _side(self, side: str, scene: Scene) -> Tensor:
        inputs = scene.inputs[side]
        total = next(self.parameters()).new_zeros(len(inputs), self.width)
        if side in self.shared:
            total = total + self.shared[side]
        for name, vocabulary in self.schema.inputs[side].items():
            if name == "id":
                if side in self.ids:
                    rows = functional.embedding(
                        inputs.ids.clamp(min=0), self.tables[table_name(vocabulary)]
                    )
                    total = total + rows * (inputs.ids >= 0)[:, None]
                continue
            indices, offsets = inputs.bag(name, self.schema.vocabularies[vocabulary].row_of_missing)
            total = total + functional.embedding_bag(
                indices, self.tables[table_name(vocabulary)], offsets[:-1], mode="mean"
            )
        return total


class GraphSage(GraphEncoder):
    """h_i ← BatchNorm(W mean_{j ~ i} h_j + b + V h_i), with ReLU after each layer but the last.

    Both sides share the convolutions. All queries start from one learned vector plus their
    features, so a query is defined by its candidates, and new queries have vectors, too. Candidates
    start from the sum of the mean rows of their features; with `ids`, or without features, the row
    of their id is added, which is zero for an unknown id.

    Artefacts record the keyword arguments by name, so they stay separate arguments.

    Args:
        layers: the number of convolutions.
        ids: True adds id rows to candidates that have features, which helps if few features cannot
            tell candidates apart; [BC] does not.
        width: width of initial vectors and between layers; `dim` by default.
        scale: standard deviation of initial tables and embeddings. [BC] uses 1, the libraries'
            default. The initial vector of queries has 0.1, as in [BC]'s code.
        repeats: True makes an edge of each interaction, as in [BC]'s code; False makes one of each
            distinct pair.
        normalize: True scales embeddings to unit norm.
    Source: Hamilton et al. 2017; details as in [BC] §5 and its authors' code.
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
        # BatchNorm fixes the standard deviation of the outputs. With 1, initial scores would have a
        # deviation of √D, from which squared losses do not recover.
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
    """W mean_{j ~ i} h_j + b + V h_i; names and initialization as in PyTorch Geometric."""

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


class LightGCN(GraphEncoder):
    """The mean of h⁰ … h^K, with h^{k+1}_i = Σ_{j ~ i} h^k_j / √(deg i · deg j).

    h⁰ is the row of an entity's id plus the mean rows of its features; an unknown id adds zero.

    Args:
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
