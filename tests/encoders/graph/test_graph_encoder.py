"""Both graph encoders against their definitions, one node after another or by dense matrices."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graph_corpora import (
    PAIRS,
    Pairs,
    dense_adjacency,
    feature_means,
    graph_corpus,
    random_encoder,
)
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES, Schema
from evergram.encoders.graph.adjacency import (
    adjacency,
    degrees,
    neighbour_balanced,
    neighbour_mean,
    neighbour_sum,
)
from evergram.encoders.graph.graph_encoder import GraphEncoder
from evergram.encoders.graph.graphsage import GraphSage
from evergram.encoders.graph.lightgcn import LightGCN
from evergram.errors import TrainingError


@pytest.mark.parametrize("kind", [GraphSage, LightGCN])
class TestGraphEncoder:
    def test_an_old_encoder_reads_a_grown_graph(self, kind: type[GraphEncoder]) -> None:
        """A new query and a new candidate with edges get vectors of their own; whoever is farther
        than the layers reach stays where it was, and who met the new ones moves."""
        far: Pairs = [(7, 7), (7, 8), (8, 8)]
        data, grown = (
            graph_corpus([*PAIRS, *far]),
            graph_corpus([*PAIRS, *far, (9, 0), (9, 2), (1, 9)]),
        )
        encoder = random_encoder(kind, data, layers=2)
        old, new = encoder.embed_all(data), encoder.embed_all(grown)
        for side, entities in (("query", grown.queries), ("candidate", grown.candidates)):
            place = {key: i for i, key in enumerate(entities.vocabulary.keys.to_pylist())}
            before = data.queries if side == "query" else data.candidates
            was = {key: i for i, key in enumerate(before.vocabulary.keys.to_pylist())}
            for key in (7, 8):
                torch.testing.assert_close(new[side][place[key]], old[side][was[key]])
            assert not torch.allclose(new[side][place[1]], old[side][was[1]])
            assert bool(encoder.known(side, encoder.read(grown)).all())
            others = torch.cat([new[side][: place[9]], new[side][place[9] + 1 :]])
            assert new[side][place[9]].abs().sum() > 0
            assert (others - new[side][place[9]]).abs().sum(1).min() > 1e-6

    def test_the_order_of_a_corpus_does_not_matter(self, kind: type[GraphEncoder]) -> None:
        data, other = graph_corpus(), graph_corpus(PAIRS[::-1])
        encoder = random_encoder(kind, data)
        first, second = encoder.embed_all(data), encoder.embed_all(other)
        rows = other.queries.vocabulary.rows(data.queries.vocabulary.keys)
        torch.testing.assert_close(second["query"][rows], first["query"])

    def test_one_pass_serves_all_rows(
        self, kind: type[GraphEncoder], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = graph_corpus()
        encoder = random_encoder(kind, data)
        passes: list[Any] = []
        real = kind.propagate

        def counted(*arguments: Any) -> Tensor:
            passes.append(arguments)
            return real(*arguments)

        monkeypatch.setattr(kind, "propagate", counted)
        embeddings = encoder(encoder.read(data))
        for side in SIDES:
            embeddings.rows(side, torch.tensor([0, 0, 1]))
            list(embeddings.blocks(side))
        assert len(passes) == 1

    def test_rows_of_unit_norm(self, kind: type[GraphEncoder]) -> None:
        data = graph_corpus()
        for vectors in random_encoder(kind, data, normalize=True).embed_all(data).values():
            torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)).double())

    def test_without_the_extra_it_says_what_to_install(
        self, kind: type[GraphEncoder], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
        with pytest.raises(TrainingError, match=r"pip install 'evergram\[graph\]'"):
            random_encoder(kind, graph_corpus())


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=30),
    st.booleans(),
)
def test_sums_over_neighbours(pairs: Pairs, repeats: bool) -> None:
    """Over distinct ones, or each as often as it was met."""
    data = graph_corpus(pairs)
    matrix = adjacency(data, repeats=repeats)
    expected = dense_adjacency(data, repeats=repeats)
    assert torch.equal(matrix @ torch.eye(len(expected)), expected.float())
    degree = expected.sum(1)
    assert torch.equal(degrees(matrix).double(), degree)
    nodes = torch.randn(len(expected), 2, dtype=torch.float64)
    torch.testing.assert_close(neighbour_sum(matrix, nodes), expected @ nodes)
    torch.testing.assert_close(neighbour_mean(matrix, nodes), expected @ nodes / degree[:, None])
    root = degree.rsqrt()
    balanced = root[:, None] * expected * root
    torch.testing.assert_close(neighbour_balanced(matrix, nodes), balanced @ nodes)


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("combine", [neighbour_sum, neighbour_mean, neighbour_balanced])
def test_the_gradients_are_those_of_the_sums(combine: Any, repeats: bool) -> None:
    matrix = adjacency(graph_corpus(), repeats=repeats)
    nodes = torch.randn(len(matrix), 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: combine(matrix, x), nodes)


def slow_sage(encoder: Encoder, data: Corpus, *, training: bool, repeats: bool = False) -> Tensor:
    """One node after another, its neighbours from a set, or a list with repeats. [BC] §5."""
    state = {name: value.detach() for name, value in encoder.state_dict().items()}
    queries = len(data.queries)
    nodes = [state["start.shared.query"]] * queries + feature_means(encoder, data)
    met = zip(data.column("query").tolist(), data.column("candidate").tolist(), strict=True)
    pairs = list(met) if repeats else set(met)
    near: list[list[int]] = [[] for _ in nodes]
    for q, c in sorted(pairs):
        near[q].append(queries + c)
        near[queries + c].append(q)
    depth = sum(1 for name in state if name.endswith("lin_l.weight"))
    for k in range(depth):
        left, right = (state[f"convolutions.{k}.lin_{s}.weight"] for s in "lr")
        raw = []
        for i, own in enumerate(nodes):
            mean = torch.zeros_like(own)
            for j in near[i]:
                mean = mean + nodes[j] / len(near[i])
            raw.append(left @ mean + state[f"convolutions.{k}.lin_l.bias"] + right @ own)
        if training:
            centre = sum(raw, torch.zeros_like(raw[0])) / len(raw)
            spread = sum(((r - centre) ** 2 for r in raw), torch.zeros_like(raw[0])) / len(raw)
        else:
            centre, spread = state[f"norms.{k}.running_mean"], state[f"norms.{k}.running_var"]
        nodes = [
            state[f"norms.{k}.weight"] * (r - centre) / (spread + 1e-5).sqrt()
            + state[f"norms.{k}.bias"]
            for r in raw
        ]
        if k < depth - 1:
            nodes = [n.clamp(min=0) for n in nodes]
    return torch.stack(nodes)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"layers": 1}, {"layers": 3, "width": 5}, {"repeats": True}]
)
def test_graphsage_is_its_definition(training: bool, options: dict[str, Any]) -> None:
    data = graph_corpus()
    encoder = random_encoder(GraphSage, data, **options)
    for name, buffer in encoder.named_buffers():
        if name.endswith(("mean", "var")):
            buffer.uniform_(0.5, 2)
    encoder.train(training)
    expected = slow_sage(encoder, data, training=training, repeats=options.get("repeats", False))
    embeddings = encoder(encoder.read(data))
    nodes = torch.cat([torch.cat(list(embeddings.blocks(side))) for side in SIDES])
    torch.testing.assert_close(nodes, expected, rtol=1e-10, atol=1e-10)


def test_embeddings_start_with_the_deviation_of_scale() -> None:
    data = graph_corpus([(q, (3 * q + k) % 11) for q in range(40) for k in range(4)])
    draw = torch.Generator().manual_seed(0)
    encoder = GraphSage(Schema.of(data, features=True), 8, generator=draw, ids=True, scale=0.2)
    embeddings = encoder(encoder.read(data))
    nodes = torch.cat([torch.cat(list(embeddings.blocks(side))) for side in SIDES])
    torch.testing.assert_close(
        nodes.std(0, unbiased=False), torch.full((8,), 0.2), rtol=0.05, atol=0
    )


@pytest.mark.parametrize("layers", [1, 3])
def test_lightgcn_is_its_definition(layers: int) -> None:
    data = graph_corpus()
    encoder = random_encoder(LightGCN, data, layers=layers)
    state = encoder.state_dict()
    start = torch.cat(
        [
            state["start.tables.query/id"],
            state["start.tables.candidate/id"] + torch.stack(feature_means(encoder, data)),
        ]
    )
    edges = dense_adjacency(data)
    root = edges.sum(1).rsqrt()
    balanced = root[:, None] * edges * root
    powers = [torch.linalg.matrix_power(balanced, k) for k in range(layers + 1)]
    expected = torch.stack([p @ start for p in powers]).mean(0)
    vectors = encoder.embed_all(data)
    torch.testing.assert_close(torch.cat([vectors[s] for s in SIDES]), expected)
