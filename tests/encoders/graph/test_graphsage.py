"""GraphSAGE against its definition, one node after another in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.graph_corpora import (
    feature_means,
    graph_corpus,
    random_encoder,
)
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES, Schema
from evergram.encoders.graph.graphsage import GraphSage


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


def test_candidates_have_rows_of_their_ids_without_features_or_with_ids() -> None:
    def tables(features: bool, **options: Any) -> set[str]:
        encoder = random_encoder(GraphSage, graph_corpus(features=features), **options)
        return {n.rsplit(".", 1)[1] for n, _ in encoder.named_parameters() if "tables" in n}

    assert tables(False) == {"candidate/id"}
    assert tables(True) == {"feature/genres", "feature/brand"}
    assert tables(True, ids=True) == {"feature/genres", "feature/brand", "candidate/id"}


def test_embeddings_start_with_the_deviation_of_scale() -> None:
    data = graph_corpus([(q, (3 * q + k) % 11) for q in range(40) for k in range(4)])
    draw = torch.Generator().manual_seed(0)
    encoder = GraphSage(Schema.of(data, features=True), 8, generator=draw, ids=True, scale=0.2)
    embeddings = encoder(encoder.read(data))
    nodes = torch.cat([torch.cat(list(embeddings.blocks(side))) for side in SIDES])
    torch.testing.assert_close(
        nodes.std(0, unbiased=False), torch.full((8,), 0.2), rtol=0.05, atol=0
    )


def test_the_vector_that_queries_share_may_have_a_deviation_of_its_own() -> None:
    schema = Schema.of(graph_corpus(), features=True)
    shared, tables = {}, {}
    for value in (None, 0.1):
        draw = torch.Generator().manual_seed(0)
        encoder = GraphSage(schema, 600, generator=draw, scale=1.0, layers=1, shared_scale=value)
        shared[value] = float(encoder.start.shared["query"].detach().std())
        tables[value] = float(torch.cat(list(encoder.start.tables.values())).detach().std())
    assert shared[None] == pytest.approx(1.0, rel=0.05)
    assert shared[0.1] == pytest.approx(0.1, rel=0.05)
    assert tables[None] == tables[0.1] == pytest.approx(1.0, rel=0.05)
