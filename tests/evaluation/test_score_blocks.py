"""Blocks of scores against one product, and lists of the best against a sort."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.largest_tensor import LargestTensor
from tests.support.peak_tensor_bytes import PeakTensorBytes

from evergram.evaluation.score_blocks import ScoreBlocks, best_candidates, largest_scores

sizes = st.integers(1, 30)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.integers(1, 3), st.integers(0, 6000))
def test_blocks_are_the_product_whatever_the_budget(
    queries: int, candidates: int, dim: int, budget: int
) -> None:
    draw = torch.Generator().manual_seed(queries * 100 + candidates)
    query = torch.randn(queries, dim, generator=draw, dtype=torch.float64)
    candidate = torch.randn(candidates, dim, generator=draw, dtype=torch.float64)
    blocks = ScoreBlocks(candidate, budget)
    assert blocks.rows * blocks.width * 8 <= max(budget, 8)
    whole = torch.full((queries, candidates), torch.nan, dtype=torch.float64)
    for first in range(0, queries, blocks.rows):
        part = slice(first, first + blocks.rows)
        for start, scores in blocks.of(query[part]):
            whole[part, start : start + scores.shape[1]] = scores
    naive = (query[:, None] * candidate).sum(-1)
    assert torch.allclose(whole, naive, rtol=0, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.integers(1, 40), st.integers(0, 6000))
def test_the_best_are_those_of_a_sort(queries: int, candidates: int, k: int, budget: int) -> None:
    draw = torch.Generator().manual_seed(queries * 100 + candidates)
    # Distinct scores: a permutation for each query, by one-hot queries.
    order = torch.stack([torch.randperm(candidates, generator=draw) for _ in range(queries)])
    best = best_candidates(torch.eye(queries), order.T.float(), k, budget)
    assert torch.equal(best, order.argsort(dim=1, descending=True)[:, :k])


@pytest.mark.parametrize(
    ("kind", "k", "budget"),
    [
        ("signs", 10, None),
        ("zeros", 299, 4000),
        ("some zeros", 1, 4000),
        ("few numbers", 10, 4000),
        ("few numbers", 400, None),
        ("signs", 0, None),
    ],
)
def test_where_scores_tie_for_the_last_place_the_lowest_rows_are_taken(
    kind: str, k: int, budget: int | None
) -> None:
    draw = torch.Generator().manual_seed(k)
    query, candidate = torch.randn(7, 6, generator=draw), torch.randn(300, 6, generator=draw)
    if kind == "signs":
        query, candidate = query.sign(), candidate.sign()
    elif kind == "zeros":
        query = torch.zeros_like(query)
    elif kind == "some zeros":
        query[::2] = 0
    else:
        candidate = candidate[torch.randint(5, (300,), generator=draw)].round()
        query = query.round()
    best = best_candidates(query, candidate, k, budget)
    expected = (query @ candidate.T).sort(dim=1, descending=True, stable=True).indices[:, :k]
    assert torch.equal(best, expected)


@settings(max_examples=60, deadline=None)
@given(sizes, st.integers(1, 300), st.integers(1, 40), st.integers(0, 20_000))
def test_lists_of_ties_are_those_of_a_stable_sort(
    queries: int, candidates: int, k: int, budget: int
) -> None:
    draw = torch.Generator().manual_seed(queries * 1000 + candidates)
    query = torch.randn(queries, 3, generator=draw).sign()
    candidate = torch.randn(candidates, 3, generator=draw).sign()
    expected = (query @ candidate.T).sort(dim=1, descending=True, stable=True).indices[:, :k]
    assert torch.equal(best_candidates(query, candidate, k, budget), expected)


def test_a_score_that_is_no_number_is_first_and_spoils_no_tie() -> None:
    candidate = torch.ones(50, 1)
    candidate[30] = torch.nan
    best = best_candidates(torch.ones(1, 1), candidate, 4)[0].tolist()
    assert best == [30, 0, 1, 2]


def test_no_tensor_is_larger_than_the_budget() -> None:
    """A catalogue that is wider than the budget of 64 queries is cut, too."""
    for candidates in [50, 20_000]:
        query, candidate = torch.randn(1500, 1), torch.randn(candidates, 1)
        with LargestTensor() as largest:
            best_candidates(query, candidate, 10, budget=1 << 17)
        assert 1 << 16 < largest.bytes <= 1 << 17


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.integers(1, 40), st.integers(4, 6000))
def test_lists_hold_no_more_than_the_budget_beside_the_blocks(
    queries: int, candidates: int, k: int, budget: int
) -> None:
    query, candidate = torch.randn(queries, 2), torch.randn(candidates, 2)
    one = 76 * min(k, candidates)
    with PeakTensorBytes() as peak:
        best = best_candidates(query, candidate, k, budget)
    # The lists that are returned are held while they are put together, and once more then.
    assert peak.bytes <= budget + max(budget, one) + 2 * best.nbytes + 64


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 4),
    st.integers(0, 700),
    st.integers(1, 40),
    st.integers(1, 1000),
    st.integers(0, 10**6),
)
def test_they_are_the_first_of_a_sorted_row(
    rows: int, width: int, k: int, values: int, seed: int
) -> None:
    """With few distinct values there are ties across groups, and masked scores are −∞."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randint(values, (rows, width), generator=draw).float()
    scores[torch.rand(rows, width, generator=draw) < 0.1] = -torch.inf
    expected = scores.sort(dim=1, descending=True).values[:, :k]
    sorted_ = largest_scores(scores, k).sort(dim=1, descending=True).values
    assert torch.equal(sorted_, expected)
