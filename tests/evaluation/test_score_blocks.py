"""Blocks of scores, neighbours, ranks by strata and samples, beside counts and sorts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tensor_bytes import TensorBytes
from torch import Tensor

from evergram.data.split import RowPairs
from evergram.evaluation.metric_sample import NORMAL, MetricSample, sample_pairs
from evergram.evaluation.ranking import Relevance, query_metrics, rank_metrics
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


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.integers(1, 40), st.integers(4, 6000))
def test_lists_hold_no_more_than_the_budget_beside_the_blocks(
    queries: int, candidates: int, k: int, budget: int
) -> None:
    query, candidate = torch.randn(queries, 2), torch.randn(candidates, 2)
    one = 76 * min(k, candidates)
    with TensorBytes() as made:
        best = best_candidates(query, candidate, k, budget)
    # The lists that are returned are held while they are put together, and once more then.
    assert made.peak <= budget + max(budget, one) + 2 * best.nbytes + 64


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


QUERIES, DRAWN, TRIALS = 900, 300, 400
METRIC = "ndcg@10"


@pytest.fixture(scope="module")
def whole() -> tuple[Relevance, Tensor, dict[str, Tensor]]:
    """All queries' relevance, candidates, and two models' queries that rank alike."""
    draw = torch.Generator().manual_seed(0)
    candidate = torch.randn(200, 8, generator=draw)
    own = torch.randint(200, (QUERIES,), generator=draw)
    query = candidate[own] + 1.2 * torch.randn(QUERIES, 8, generator=draw)
    other = query + 0.3 * torch.randn(QUERIES, 8, generator=draw)
    rows, none = torch.arange(QUERIES), torch.empty(0, dtype=torch.int64)
    return Relevance.of(rows, own, none, none), candidate, {"now": query, "was": other}


def trials(whole: tuple[Relevance, Tensor, dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Each trial's values of both models on its own sample of queries."""
    relevance, candidate, models = whole
    values = {
        n: query_metrics(q, candidate, relevance, [METRIC])[METRIC] for n, q in models.items()
    }
    pairs = RowPairs(relevance.queries, relevance.targets)
    drawn = [sample_pairs(pairs, DRAWN, seed)[0].query for seed in range(TRIALS)]
    return [{name: values[name][rows] for name in values} for rows in drawn]


def test_a_sample_is_ranked_as_its_queries_are_in_the_whole(
    whole: tuple[Relevance, Tensor, dict[str, Tensor]],
) -> None:
    _, candidate, models = whole
    draw = torch.Generator().manual_seed(1)
    masked = torch.randint(200, (3 * QUERIES,), generator=draw)
    rows = torch.arange(QUERIES)
    pairs = RowPairs(rows.repeat_interleave(2), masked[: 2 * QUERIES])

    def ranked(number: int | None, seed: int = 7) -> tuple[Tensor, Tensor]:
        sample, population = sample_pairs(pairs, number, seed)
        assert population == QUERIES
        part = Relevance.of(sample.query, sample.candidate, rows, masked[2 * QUERIES :])
        return part.queries, query_metrics(models["now"], candidate, part, [METRIC])[METRIC]

    (queries, values), (_, every) = ranked(100), ranked(None)
    assert len(queries) == 100
    assert torch.equal(values, every[queries])
    assert set(queries.tolist()) < set(ranked(200)[0].tolist())
    assert ranked(100)[0].equal(queries)
    assert not ranked(100, 8)[0].equal(queries)
    assert sample_pairs(pairs, QUERIES, 7)[0] is pairs


def test_intervals_cover_the_metric_of_all_queries(
    whole: tuple[Relevance, Tensor, dict[str, Tensor]],
) -> None:
    """A third of the queries is drawn: without the finite population's factor intervals would be
    √1.5 times too wide, and cover 98.4 %."""
    relevance, candidate, models = whole
    truth = rank_metrics(models["now"], candidate, relevance, [METRIC])[METRIC]
    samples = [MetricSample(each["now"], QUERIES) for each in trials(whole)]
    covered = sum(abs(s.mean - truth) < NORMAL * s.standard_error for s in samples) / TRIALS
    # Three standard deviations of a share of 95 % in so many trials.
    assert abs(covered - 0.95) < 3 * math.sqrt(0.95 * 0.05 / TRIALS)
    spread = torch.tensor([s.mean for s in samples]).std()
    assert samples[0].standard_error == pytest.approx(float(spread), rel=0.15)


def test_a_difference_of_noise_is_seldom_seen_and_a_real_one_is(
    whole: tuple[Relevance, Tensor, dict[str, Tensor]],
) -> None:
    draw = torch.Generator().manual_seed(3)
    noise = torch.randn(TRIALS, DRAWN, generator=draw).double()
    seen = sum(MetricSample(1 + row, 10**6).above(torch.ones(DRAWN)) for row in noise) / TRIALS
    assert seen < 0.025 + 3 * math.sqrt(0.025 / TRIALS)
    assert all(MetricSample(1.5 + row, 10**6).above(torch.ones(DRAWN)) for row in noise)
    # Everything is no sample: the least difference is seen.
    one = torch.ones(5, dtype=torch.float64)
    assert MetricSample(one * (1 + 1e-12), 5).above(one)
    assert not MetricSample(one, 5).above(one)
