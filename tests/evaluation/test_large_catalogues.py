"""Rankings by an index and by a sample of queries, against exact ones."""

from __future__ import annotations

import math

import pytest
import torch
from tests.support.optional import need
from torch import Tensor

from evergram.errors import DataError, ShapeError
from evergram.evaluation.large_catalogues import candidate_index
from evergram.evaluation.large_catalogues.candidate_index import (
    CandidateIndex,
    IndexKind,
    index_metrics,
)
from evergram.evaluation.large_catalogues.metric_sample import (
    NORMAL,
    MetricSample,
    sample_queries,
)
from evergram.evaluation.ranking import Relevance, query_metrics, rank_metrics

need("faiss")
NAMES = ["recall@5", "ndcg@10", "map@10"]
KINDS: list[IndexKind] = ["hnsw", "ivf"]


@pytest.fixture(scope="module")
def case() -> tuple[Tensor, Tensor, Relevance]:
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(20, 8, generator=draw)
    candidate = centres[torch.randint(20, (2000,), generator=draw)]
    candidate = candidate + 0.5 * torch.randn(2000, 8, generator=draw)
    query = candidate[:300] + 0.3 * torch.randn(300, 8, generator=draw)
    rows = torch.arange(300)
    held = torch.cat([rows, torch.randint(2000, (300,), generator=draw)])
    held[310] = -1
    seen_of = torch.randint(300, (5000,), generator=draw)
    seen = torch.randint(2000, (5000,), generator=draw)
    return query, candidate, Relevance.of(rows.repeat(2), held, seen_of, seen)


def test_an_index_that_looks_at_everything_ranks_exactly(
    case: tuple[Tensor, Tensor, Relevance], monkeypatch: pytest.MonkeyPatch
) -> None:
    query, candidate, relevance = case
    monkeypatch.setattr(candidate_index, "RECALL", 1.0)
    monkeypatch.setattr(candidate_index, "PLACES", 3000)
    index = CandidateIndex(candidate, "ivf")
    exact = query_metrics(query, candidate, relevance, NAMES)
    monkeypatch.setattr(index, "_search", lambda q, k, effort: (q @ candidate.T).topk(k))
    values = index_metrics(query, relevance, index, NAMES)
    for name in NAMES:
        assert torch.allclose(values[name], exact[name], atol=1e-12), name


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_by_an_index_are_as_near_as_its_recall(
    case: tuple[Tensor, Tensor, Relevance], kind: IndexKind
) -> None:
    query, candidate, relevance = case
    index = CandidateIndex(candidate, kind)
    values = index_metrics(query, relevance, index, NAMES)
    assert index.measured is not None
    assert 0.95 <= index.measured.recall <= 1
    assert (index.measured.k, index.measured.queries) == (10, 300)
    # The recall again, by lists of its own.
    _, places = index.search(query[relevance.queries], 10)
    truth = (query[relevance.queries] @ candidate.T).topk(10).indices
    share = sum(len(set(a) & set(b)) for a, b in zip(places.tolist(), truth.tolist(), strict=True))
    assert share / truth.numel() == pytest.approx(index.measured.recall, abs=0.01)
    exact = query_metrics(query, candidate, relevance, NAMES)
    for name in NAMES:
        assert float(values[name].mean()) == pytest.approx(float(exact[name].mean()), abs=0.05)


def test_an_index_that_was_not_measured_is_never_used(
    case: tuple[Tensor, Tensor, Relevance], monkeypatch: pytest.MonkeyPatch
) -> None:
    query, candidate, relevance = case
    index = CandidateIndex(candidate, "ivf")
    with pytest.raises(DataError, match="was not measured"):
        index.search(query, 3)
    with pytest.raises(DataError, match="there are 0"):
        index.measure(query[:0], 3)
    monkeypatch.setattr(candidate_index, "RECALL", 1.1)
    with pytest.raises(DataError, match="110% are needed"):
        index_metrics(query, relevance, index)
    assert index.measured is None
    with pytest.raises(ShapeError, match="dim 3"):
        index_metrics(torch.ones(2, 3), relevance, index)


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
    drawn = [sample_queries(relevance, DRAWN, seed).queries for seed in range(TRIALS)]
    return [{name: values[name][rows] for name in values} for rows in drawn]


def test_a_sample_is_ranked_as_its_queries_are_in_the_whole(
    whole: tuple[Relevance, Tensor, dict[str, Tensor]],
) -> None:
    relevance, candidate, models = whole
    draw = torch.Generator().manual_seed(1)
    masked = torch.randint(200, (3 * QUERIES,), generator=draw)
    rows = torch.arange(QUERIES)
    relevance = Relevance.of(
        rows.repeat_interleave(2), masked[: 2 * QUERIES], rows, masked[2 * QUERIES :]
    )
    values = query_metrics(models["now"], candidate, relevance, [METRIC])[METRIC]
    part = sample_queries(relevance, 100, 7)
    assert torch.equal(
        query_metrics(models["now"], candidate, part, [METRIC])[METRIC], values[part.queries]
    )
    assert set(part.queries.tolist()) < set(sample_queries(relevance, 200, 7).queries.tolist())
    assert sample_queries(relevance, 100, 7).queries.equal(part.queries)
    assert not sample_queries(relevance, 100, 8).queries.equal(part.queries)
    assert sample_queries(relevance, QUERIES, 7) is relevance


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
