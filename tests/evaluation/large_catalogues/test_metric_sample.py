"""Sampled metrics against those of all queries, by simulation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from evergram.evaluation.large_catalogues.metric_sample import (
    NORMAL,
    MetricSample,
    SampledRanking,
    sample_queries,
)
from evergram.evaluation.ranking import Relevance, query_metrics, rank_metrics

QUERIES, DRAWN, TRIALS = 900, 300, 400
METRIC = "ndcg@10"


@pytest.fixture(scope="module")
def case() -> tuple[Relevance, Tensor, dict[str, Tensor]]:
    """All queries' relevance, candidates, and two models' queries that rank alike."""
    draw = torch.Generator().manual_seed(0)
    candidate = torch.randn(200, 8, generator=draw)
    own = torch.randint(200, (QUERIES,), generator=draw)
    query = candidate[own] + 1.2 * torch.randn(QUERIES, 8, generator=draw)
    other = query + 0.3 * torch.randn(QUERIES, 8, generator=draw)
    rows, none = torch.arange(QUERIES), torch.empty(0, dtype=torch.int64)
    return Relevance.of(rows, own, none, none), candidate, {"now": query, "was": other}


def trials(case: tuple[Relevance, Tensor, dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Each trial's values of both models on its own sample of queries."""
    relevance, candidate, models = case
    values = {
        n: query_metrics(q, candidate, relevance, [METRIC])[METRIC] for n, q in models.items()
    }
    drawn = [sample_queries(relevance, DRAWN, seed).queries for seed in range(TRIALS)]
    return [{name: values[name][rows] for name in values} for rows in drawn]


def test_a_sample_is_ranked_as_its_queries_are_in_the_whole(
    case: tuple[Relevance, Tensor, dict[str, Tensor]],
) -> None:
    relevance, candidate, models = case
    draw = torch.Generator().manual_seed(1)
    masked = torch.randint(200, (3 * QUERIES,), generator=draw)
    rows = torch.arange(QUERIES)
    relevance = Relevance.of(
        rows.repeat_interleave(2), masked[: 2 * QUERIES], rows, masked[2 * QUERIES :]
    )
    whole = query_metrics(models["now"], candidate, relevance, [METRIC])[METRIC]
    part = sample_queries(relevance, 100, 7)
    assert torch.equal(
        query_metrics(models["now"], candidate, part, [METRIC])[METRIC], whole[part.queries]
    )
    assert set(part.queries.tolist()) < set(sample_queries(relevance, 200, 7).queries.tolist())
    assert sample_queries(relevance, 100, 7).queries.equal(part.queries)
    assert not sample_queries(relevance, 100, 8).queries.equal(part.queries)
    assert sample_queries(relevance, QUERIES, 7) is relevance


def test_intervals_cover_the_metric_of_all_queries(
    case: tuple[Relevance, Tensor, dict[str, Tensor]],
) -> None:
    """A third of the queries is drawn: without the finite population's factor intervals would be
    √1.5 times too wide, and cover 98.4 %."""
    relevance, candidate, models = case
    truth = rank_metrics(models["now"], candidate, relevance, [METRIC])[METRIC]
    samples = [MetricSample(each["now"], QUERIES) for each in trials(case)]
    covered = sum(abs(s.mean - truth) < NORMAL * s.standard_error for s in samples) / TRIALS
    # Three standard deviations of a share of 95 % in so many trials.
    assert abs(covered - 0.95) < 3 * math.sqrt(0.95 * 0.05 / TRIALS)
    spread = torch.tensor([s.mean for s in samples]).std()
    assert samples[0].standard_error == pytest.approx(float(spread), rel=0.15)


def test_the_error_of_a_loss_is_its_spread_and_pairs_see_more(
    case: tuple[Relevance, Tensor, dict[str, Tensor]],
) -> None:
    relevance, candidate, models = case
    now, was = (
        rank_metrics(models[n], candidate, relevance, [METRIC])[METRIC] for n in ("now", "was")
    )
    truth = 100 * (was - now) / was
    losses = [MetricSample(t["now"], QUERIES).loss(t["was"]) for t in trials(case)]
    covered = sum(abs(loss - truth) < NORMAL * error for loss, error in losses) / TRIALS
    assert abs(covered - 0.95) < 3 * math.sqrt(0.95 * 0.05 / TRIALS)
    apart = [MetricSample(t["now"], QUERIES).standard_error for t in trials(case)]
    assert losses[0][1] / 100 * was < 0.8 * math.sqrt(2) * apart[0]


def test_a_difference_of_noise_is_seldom_seen_and_a_real_one_is(
    case: tuple[Relevance, Tensor, dict[str, Tensor]],
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


def test_what_cannot_be_known_is_infinite() -> None:
    one = torch.ones(1, dtype=torch.float64)
    assert MetricSample(one, 2).standard_error == math.inf
    assert MetricSample(one, 1).standard_error == 0
    value, error = MetricSample(torch.ones(3).double(), 9).loss(torch.zeros(3).double())
    assert math.isnan(value)
    assert error == math.inf


def test_the_record_has_each_error_and_the_loss() -> None:
    now, was = torch.tensor([0.0, 1.0, 1.0]).double(), torch.tensor([1.0, 1.0, 1.0]).double()
    ranking = SampledRanking({"chain": {METRIC: now}, "past": {METRIC: was}}, 12)
    assert ranking.means()["chain"] == {METRIC: pytest.approx(2 / 3)}
    error = math.sqrt((1 - 3 / 12) / 3 / 3)
    assert ranking.as_json({"past": ("chain", "past")}) == {
        "queries": 3,
        "of": 12,
        "errors": {"chain": {METRIC: pytest.approx(error)}, "past": {METRIC: 0.0}},
        "loss": {"past": {METRIC: pytest.approx(100 * error)}},
    }
