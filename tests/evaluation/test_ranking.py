"""Ranking metrics against a slow oracle that sorts lists, alone and by several processes."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tensor_bytes import TensorBytes
from tests.support.thread_processes import Threads, in_threads
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.split import RowPairs
from evergram.errors import DataError, RecipeError, ShapeError
from evergram.evaluation import ranking as module
from evergram.evaluation import score_blocks
from evergram.evaluation.probes import roc_auc
from evergram.evaluation.ranking import (
    NOT_FINITE,
    Relevance,
    discriminating,
    query_metrics,
    rank_metrics,
)

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
def cases(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int]], list[tuple[int, int]], int]:
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


def test_no_tensor_is_larger_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    query, candidate = torch.randn(900, 2, generator=draw), torch.randn(2000, 2, generator=draw)
    case = relevance([(q, q) for q in range(900)], [(q, q + 1) for q in range(900)])
    budget = 40_000
    with TensorBytes() as whole:
        before = rank_metrics(query, candidate, case)
    assert whole.largest == 4 * len(query) * len(candidate)
    monkeypatch.setattr(score_blocks, "SCORE_BYTES", budget)
    with TensorBytes() as made:
        after = rank_metrics(query, candidate, case)
    assert budget / 2 < made.largest <= budget
    assert after == pytest.approx(before, abs=1e-6)


def test_other_dims_names_and_scores_are_refused() -> None:
    one = relevance([(0, 0)], [])
    with pytest.raises(ShapeError, match="the same version"):
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


def test_a_masked_target_is_a_miss_however_long_the_list() -> None:
    """Four candidates and a list of fifty: what was seen is in no list."""
    for name in ["recall@50", "ndcg@50", "map@50"]:
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


def test_finite_embeddings_with_infinite_scores_are_refused() -> None:
    for large in [1e19, 3e38]:
        one = relevance([(0, 0)], [])
        with pytest.raises(ShapeError, match="not finite"):
            rank_metrics(torch.full((1, 4), large), torch.full((3, 4), large), one)
        with pytest.raises(ShapeError, match="not finite"):
            rank_metrics(torch.full((1, 4), large), torch.full((3, 4), -large), one)
        # No score overflows here, though the bound by the largest coordinates does.
        query = torch.tensor([[large, 0.0]])
        assert rank_metrics(query, torch.tensor([[0.0, large], [0.0, 0.0]]), one, ["recall@2"])


TRAINING = Corpus.of(pa.table({"query": [0, 0, 1], "candidate": [0, 1, 2]}))


def row_pairs(*pairs: tuple[int, int]) -> RowPairs:
    query, candidate = zip(*pairs, strict=True)
    return RowPairs(torch.tensor(query), torch.tensor(candidate))


def masked(targets: Relevance) -> dict[int, list[int]]:
    ends = targets.seen_offsets.tolist()
    return {
        int(query): sorted(targets.seen[ends[i] : ends[i + 1]].tolist())
        for i, query in enumerate(targets.queries)
    }


def test_training_pairs_are_masked_for_queries_with_targets() -> None:
    targets = module.relevance_of(TRAINING, row_pairs((0, 2), (0, -1)))
    assert targets.queries.tolist() == [0]
    assert sorted(targets.targets.tolist()) == [-1, 2]
    assert masked(targets) == {0: [0, 1]}


SHARED = ["recall@5", "ndcg@5", "map@3"]


def ranking() -> tuple[Tensor, Tensor, Relevance]:
    """101 queries and 60 candidates, some of which are the same."""
    draw = torch.Generator().manual_seed(1)
    query, candidate = torch.randn(101, 7, generator=draw), torch.randn(60, 7, generator=draw)
    candidate[50:] = candidate[:10]
    pairs = torch.randint(0, 60, (4, 500), generator=draw)
    owners = torch.randint(0, 101, (2, 500), generator=draw)
    return query, candidate, Relevance.of(owners[0], pairs[0], owners[1], pairs[1])


def test_processes_have_the_numbers_of_one_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_blocks, "SCORE_BYTES", 60 * 4 * 9)  # nine queries a block
    args = *ranking(), SHARED
    means, values = rank_metrics(*args), query_metrics(*args)
    assert 0 < means["recall@5"] < 1
    for together in in_threads(3, lambda p: rank_metrics(*args, together=p))[0]:
        assert together == means
    for shared in in_threads(3, lambda p: query_metrics(*args, together=p))[0]:
        assert all(torch.equal(shared[name], values[name]) for name in SHARED)


def test_a_score_that_is_not_finite_is_everyones_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process meets it; the others would wait for it for ever."""
    monkeypatch.setattr(score_blocks, "SCORE_BYTES", 60 * 4 * 9)
    query, candidate, one = ranking()
    query[one.queries[-1]] = torch.nan

    def sentence(process: Threads) -> str:
        with pytest.raises(ShapeError) as error:
            rank_metrics(query, candidate, one, SHARED, together=process)
        return str(error.value)

    assert in_threads(3, sentence)[0] == [NOT_FINITE] * 3


def test_the_length_of_lists() -> None:
    for name, masked, expected in [
        ("recall@20", (0, 0), "recall@7"),  # 7/15 and not 8/15
        ("recall@15", (0, 0), "recall@7"),
        ("recall@14", (0, 0), "recall@7"),  # 14/15 are nearly all
        ("recall@13", (0, 0), "recall@13"),
        ("recall@10", (5, 5), "recall@5"),  # ten are left after masking
        ("recall@10", (5, 0), "recall@10"),  # 5/6 by chance
        ("recall@999999", (5, 5), "recall@5"),
        ("recall@3", (13, 13), "recall@1"),
        ("ndcg@20", (0, 0), "ndcg@20"),  # its order counts
        ("map@20", (0, 0), "map@20"),
    ]:
        left = 15 - torch.tensor(masked)
        assert discriminating(name, left) == expected
        assert discriminating(expected, left) == expected


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_auc_equals_the_count_over_all_pairs(examples: list[tuple[int, bool]]) -> None:
    positive = [s for s, y in examples if y]
    negative = [s for s, y in examples if not y]
    if not positive or not negative:
        with pytest.raises(DataError, match="positive and negative"):
            roc_auc(np.zeros(len(examples)), np.array([y for _, y in examples]))
        return
    won = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    scores = np.array([s for s, _ in examples], dtype=np.float32)
    labels = np.array([y for _, y in examples])
    assert roc_auc(scores, labels) == pytest.approx(won / len(positive) / len(negative))
