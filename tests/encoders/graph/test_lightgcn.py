"""LightGCN against powers of the dense balanced adjacency, in float64."""

from __future__ import annotations

import pytest
import torch
from tests.support.graph_corpora import (
    dense_adjacency,
    feature_means,
    graph_corpus,
    random_encoder,
)

from evergram.encoders.features import SIDES
from evergram.encoders.graph.lightgcn import LightGCN


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
