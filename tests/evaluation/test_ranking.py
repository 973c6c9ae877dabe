"""Ranking metrics against a slow oracle that sorts lists."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.largest_tensor import LargestTensor
from tests.support.peak_tensor_bytes import PeakTensorBytes

from evergram.errors import RecipeError, ShapeError
from evergram.evaluation import score_blocks
from evergram.evaluation.ranking import Relevance, popularity_metrics, query_metrics, rank_metrics

NAMES = ("recall@1", "recall@3", "ndcg@3", "map@3", "ndcg@50", "map@50")


def relevance(pairs: list[tuple[int, int]], seen: list[tuple[int, int]]) -> Relevance:
    held = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    known = torch.tensor(seen, dtype=torch.int64).reshape(-1, 2)
    return Relevance.of(held[:, 0], held[:, 1], known[:, 0], known[:, 1])


def oracle(
    scores: list[list[float]], pairs: list[tuple[int, int]], seen: list[tuple[int, int]], name: str
) -> float:
    """Sort each query's unseen candidates, best first; scores are distinct."""
    kind, k = name.split("@")
    depth, values = int(k), []
    for query in sorted({q for q, _ in pairs}):
        wanted = {c for q, c in pairs if q == query}
        total = sum(1 for q, c in pairs if q == query)
        hidden = {c for q, c in seen if q == query}
        order = sorted(
            (c for c in range(len(scores[0])) if c not in hidden), key=lambda c: -scores[query][c]
        )
        top = [c in wanted for c in order[:depth]]
        if kind == "recall":
            values.append(sum(top) / total)
        elif kind == "ndcg":
            gain = sum(hit / math.log2(i + 2) for i, hit in enumerate(top))
            values.append(gain / sum(1 / math.log2(i + 2) for i in range(min(depth, total))))
        else:
            precision = sum(sum(top[: i + 1]) / (i + 1) for i, hit in enumerate(top) if hit)
            values.append(precision / min(depth, total))
    return sum(values) / len(values)


@st.composite
def cases(
    draw: st.DrawFn,
) -> tuple[int, int, list[tuple[int, int]], list[tuple[int, int]], int]:
    queries, candidates = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    every = [(q, c) for q in range(queries) for c in range(candidates)]
    pairs = draw(st.lists(st.sampled_from(every), unique=True, min_size=1))
    seen = draw(st.lists(st.sampled_from(every), unique=True))
    seen = [pair for pair in seen if pair not in pairs]
    unknown = [(q, -1) for q in {q for q, _ in pairs} if draw(st.booleans())]
    return queries, candidates, pairs + unknown, seen, draw(st.integers(0, 10**6))


@settings(max_examples=100, deadline=None)
@given(cases())
def test_metrics_are_those_of_sorted_lists(
    case: tuple[int, int, list[tuple[int, int]], list[tuple[int, int]], int],
) -> None:
    queries, candidates, pairs, seen, seed = case
    draw = torch.Generator().manual_seed(seed)
    # Distinct scores: a permutation for each query, by one-hot queries.
    order = [torch.randperm(candidates, generator=draw) for _ in range(queries)]
    table = torch.stack(order).float()
    metrics = rank_metrics(torch.eye(queries), table.T.contiguous(), relevance(pairs, seen), NAMES)
    for name in NAMES:
        assert metrics[name] == pytest.approx(oracle(table.tolist(), pairs, seen, name)), name


@pytest.mark.parametrize("budget", [4, 360, 4 * 64 * 7, 1 << 20])
def test_metrics_do_not_depend_on_the_budget(monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    """One score at a time; three queries; all queries and seven candidates; everything at once."""
    draw = torch.Generator().manual_seed(0)
    query, candidate = torch.randn(40, 4, generator=draw), torch.randn(30, 4, generator=draw)
    held = [(q, (7 * q + i) % 30) for q in range(40) for i in range(q % 4)] + [(5, -1)]
    seen = [(q, (7 * q + 3 + 11 * i) % 30) for q in range(40) for i in range(q % 5)]
    whole = rank_metrics(query, candidate, relevance(held, seen), NAMES)
    assert 0.05 < whole["recall@3"] < 0.5
    monkeypatch.setattr(score_blocks, "SCORE_BYTES", budget)
    blocks = rank_metrics(query, candidate, relevance(held, seen), NAMES)
    assert blocks == pytest.approx(whole, abs=1e-6)


def test_no_tensor_is_larger_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    query, candidate = torch.randn(900, 2, generator=draw), torch.randn(2000, 2, generator=draw)
    case = relevance([(q, q) for q in range(900)], [(q, q + 1) for q in range(900)])
    budget = 40_000
    with LargestTensor() as whole:
        before = rank_metrics(query, candidate, case)
    assert whole.bytes == 4 * len(query) * len(candidate)
    monkeypatch.setattr(score_blocks, "SCORE_BYTES", budget)
    with LargestTensor() as largest:
        after = rank_metrics(query, candidate, case)
    assert budget / 2 < largest.bytes <= budget
    assert after == pytest.approx(before, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 80), st.integers(1, 300), st.floats(0, 1), st.integers(1 << 13, 1 << 16))
def test_a_ranking_holds_at_most_three_blocks_whatever_the_catalogue(
    queries: int, candidates: int, density: float, budget: int
) -> None:
    """One of scores, one of lists, one of pairs; seen candidates may be few or all."""
    draw = torch.Generator().manual_seed(queries * 1000 + candidates)
    query = torch.randn(queries, 2, generator=draw)
    candidate = torch.randn(candidates, 2, generator=draw)
    many = min(int(density * candidates), 80)  # a query's own pairs fit into a block
    seen = [(q, (q + i) % candidates) for q in range(queries) for i in range(many)]
    case = relevance([(q, (3 * q) % candidates) for q in range(queries)], seen)
    with pytest.MonkeyPatch.context() as patch, PeakTensorBytes() as peak:
        patch.setattr(score_blocks, "SCORE_BYTES", budget)
        metrics = rank_metrics(query, candidate, case, ["recall@20"])
    assert peak.bytes <= 3 * budget
    assert metrics == pytest.approx(rank_metrics(query, candidate, case, ["recall@20"]), abs=1e-6)


def test_a_constant_embedding_scores_nothing() -> None:
    held = [(q, q) for q in range(5)]
    metrics = rank_metrics(torch.ones(5, 2), torch.ones(50, 2), relevance(held, []))
    assert metrics == {"recall@20": 0.0, "ndcg@20": 0.0, "map@10": 0.0}


@pytest.mark.parametrize("shift", [-1000.0, 0.0, 1000.0])
def test_metrics_do_not_change_when_all_scores_shift(shift: float) -> None:
    draw = torch.Generator().manual_seed(0)
    scores = torch.randperm(60, generator=draw).reshape(2, 30).float()
    held = [(0, 3), (0, 4), (1, 9)]
    query = torch.cat([torch.eye(2), torch.ones(2, 1)], dim=1)
    candidate = torch.cat([scores.T, torch.full((30, 1), shift)], dim=1)
    expected = rank_metrics(torch.eye(2), scores.T.contiguous(), relevance(held, []))
    assert rank_metrics(query, candidate, relevance(held, [])) == expected


def test_popularity_ranks_by_count_and_ties_cost_it_nothing() -> None:
    counts = torch.tensor([1, 5, 5, 0])
    metrics = popularity_metrics(counts, relevance([(0, 2)], [(0, 1)]), ["recall@1"])
    assert metrics == {"recall@1": 1.0}
    tied = popularity_metrics(torch.ones(9), relevance([(0, 1)], []), ["recall@2"])
    assert tied == {"recall@2": 1.0}


def test_nothing_to_judge_is_not_a_number() -> None:
    metrics = rank_metrics(torch.ones(1, 1), torch.ones(1, 1), relevance([], []), ["recall@1"])
    assert math.isnan(metrics["recall@1"])


def test_other_dims_names_and_scores_are_refused() -> None:
    one = relevance([(0, 0)], [])
    with pytest.raises(ShapeError, match="one version"):
        rank_metrics(torch.ones(1, 2), torch.ones(1, 3), one)
    with pytest.raises(ShapeError, match="not finite"):
        rank_metrics(torch.full((1, 1), torch.nan), torch.ones(3, 1), one)
    with pytest.raises(RecipeError, match="recall@K"):
        rank_metrics(torch.ones(1, 1), torch.ones(1, 1), one, ["hits@3"])


def test_a_pair_held_out_twice_is_one_target() -> None:
    query, candidate = torch.eye(2), torch.tensor([[3.0, 0], [2, 0], [1, 1]])
    none = torch.zeros(0, dtype=torch.int64)
    rows = (torch.tensor([0, 1, 0, 0, 0]), torch.tensor([1, 2, 1, -1, -1]))
    metrics = rank_metrics(query, candidate, Relevance.of(*rows, none, none), ["recall@2", "map@2"])
    # Query 0: one of three targets, two of them unknown, at rank 2. Query 1: its target is first.
    assert metrics["recall@2"] == pytest.approx((1 / 3 + 1) / 2)
    assert metrics["map@2"] == pytest.approx((0.5 / 2 + 1) / 2)


@pytest.mark.parametrize("name", ["recall@50", "ndcg@50", "map@50"])
def test_a_masked_target_is_a_miss_however_long_the_list(name: str) -> None:
    """Four candidates and a list of fifty: what was seen is in no list."""
    query, candidate = torch.ones(1, 1), torch.tensor([[4.0], [3.0], [2.0], [1.0]])
    masked = rank_metrics(query, candidate, relevance([(0, 0)], [(0, 0)]), [name])
    assert masked == {name: 0.0}
    # Of two targets the one that can be listed counts, and stands first.
    both = rank_metrics(query, candidate, relevance([(0, 0), (0, 1)], [(0, 0)]), [name])
    best = {"recall@50": 1 / 2, "ndcg@50": 1 / (1 + 1 / math.log2(3)), "map@50": 1 / 2}
    assert both[name] == pytest.approx(best[name])


def test_the_metrics_of_each_query_have_the_mean_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    query, candidate = torch.randn(40, 4, generator=draw), torch.randn(30, 4, generator=draw)
    case = relevance([(q, (7 * q + i) % 30) for q in range(40) for i in range(q % 4)], [(1, 3)])
    monkeypatch.setattr(score_blocks, "SCORE_BYTES", 400)
    each = query_metrics(query, candidate, case, NAMES)
    assert {len(values) for values in each.values()} == {len(case)}
    whole = rank_metrics(query, candidate, case, NAMES)
    assert {n: float(v.mean()) for n, v in each.items()} == pytest.approx(whole)
    first = relevance([(1, 7)], [(1, 3)])
    assert rank_metrics(query, candidate, first, ["ndcg@50"])["ndcg@50"] == float(
        each["ndcg@50"][0]
    )


@pytest.mark.parametrize("large", [1e19, 3e38])
def test_finite_embeddings_with_infinite_scores_are_refused(large: float) -> None:
    one = relevance([(0, 0)], [])
    with pytest.raises(ShapeError, match="not finite"):
        rank_metrics(torch.full((1, 4), large), torch.full((3, 4), large), one)
    with pytest.raises(ShapeError, match="not finite"):
        rank_metrics(torch.full((1, 4), large), torch.full((3, 4), -large), one)
    # No score overflows here, though the bound by the largest coordinates does.
    query = torch.tensor([[large, 0.0]])
    assert rank_metrics(query, torch.tensor([[0.0, large], [0.0, 0.0]]), one, ["recall@2"])
