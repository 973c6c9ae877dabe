"""Sums over neighbours against a dense matrix of zeros and ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graph_corpora import (
    Pairs,
    dense_adjacency,
    graph_corpus,
)

from evergram.encoders.graph.adjacency import (
    adjacency,
    degrees,
    neighbour_balanced,
    neighbour_mean,
    neighbour_sum,
)


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
