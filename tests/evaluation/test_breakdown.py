"""Neighbours, ranks of targets and recall by strata, against counts in Python."""

from __future__ import annotations

import pytest
import torch

from evergram.evaluation import breakdown, score_blocks
from evergram.evaluation.breakdown import (
    UNRANKED,
    metric_of_ranks,
    nearest_neighbours,
    owners,
    popularity_strata,
    recall_by_pairs,
    recall_by_popularity,
    target_ranks,
)
from evergram.evaluation.ranking import Relevance, query_metrics


def test_neighbours_are_those_of_all_cosines(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakdown, "ROWS", 7)
    vectors = torch.randn(50, 4, generator=generator)
    rows = torch.tensor([3, 49, 20])
    wide = vectors.double()
    cosines = (wide @ wide.T) / (wide.norm(dim=1)[:, None] * wide.norm(dim=1))
    cosines.fill_diagonal_(-2)
    values, places = nearest_neighbours(vectors, rows, 5)
    assert torch.equal(places, cosines[rows].argsort(descending=True)[:, :5])
    assert torch.allclose(values.double(), cosines[rows].sort(descending=True).values[:, :5])
    _, places = nearest_neighbours(torch.eye(3), torch.tensor([1]), 5)
    assert sorted(places[0].tolist()) == [0, 2]


def example(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, Relevance]:
    """Integers, so that scores tie and no order of summing matters."""
    query = torch.randint(-2, 3, (12, 3), generator=generator).float()
    candidate = torch.randint(-2, 3, (30, 3), generator=generator).float()
    pairs = torch.randint(0, 12, (40,), generator=generator)
    targets = torch.randint(-1, 30, (40,), generator=generator)
    seen = [torch.randint(0, n, (60,), generator=generator) for n in (12, 30)]
    return query, candidate, Relevance.of(pairs, targets, seen[0], seen[1])


def test_a_rank_is_the_number_of_unseen_candidates_that_score_as_much(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, candidate, relevance = example(generator)
    expected = []
    for place in range(len(relevance)):
        start, end = relevance.seen_offsets[place : place + 2].tolist()
        seen = set(relevance.seen[start:end].tolist())
        row = query[relevance.queries[place]].tolist()
        scores = [sum(a * b for a, b in zip(row, c, strict=True)) for c in candidate.tolist()]
        start, end = relevance.target_offsets[place : place + 2].tolist()
        for target in relevance.targets[start:end].tolist():
            if target < 0:
                expected.append(0)
            elif target in seen:
                expected.append(UNRANKED)
            else:
                unseen = [s for c, s in enumerate(scores) if c not in seen]
                expected.append(sum(s >= scores[target] for s in unseen))
    monkeypatch.setattr(score_blocks, "SCORE_BYTES", 256)
    assert target_ranks(query, candidate, relevance).tolist() == expected
    assert {0, UNRANKED} < set(expected)


def test_metrics_by_ranks_are_those_of_a_ranking(generator: torch.Generator) -> None:
    for name in ["recall@5", "ndcg@7", "map@3", "recall@50", "map@31"]:
        query, candidate, relevance = example(generator)
        ranks = target_ranks(query, candidate, relevance)
        expected = query_metrics(query, candidate, relevance, [name])[name]
        assert torch.equal(metric_of_ranks(name, ranks, relevance), expected)
        assert owners(relevance).bincount().tolist() == relevance.target_offsets.diff().tolist()


def test_strata_are_shares_of_candidates_the_most_popular_first() -> None:
    counts = torch.arange(200).flip(0)
    names, of = popularity_strata(counts)
    assert of.bincount().tolist() == [2, 18, 80, 100]
    assert of[:2].tolist() == [0, 0]
    assert names[0] == "most popular 1 %: 198 to 199 pairs"
    assert names[3] == "least popular 50 %: 0 to 99 pairs"


def test_recall_by_popularity_is_hits_over_test_pairs() -> None:
    counts = torch.tensor([9, 8, 2, 1])
    ranks = {"model": torch.tensor([1, 3, 2, 5, 0]), "other": torch.tensor([9, 1, 9, 1, 0])}
    targets = torch.tensor([0, 0, 1, 3, -1])
    strata = recall_by_popularity(ranks, targets, counts, k=2)
    # Of four candidates the first is the top 1 % and 10 %, the second the next 40 %.
    assert [s.members for s in strata] == [1, 0, 1, 2]
    assert [s.measured for s in strata] == [2, 0, 1, 1]
    assert [s.values["model"] for s in strata] == [0.5, None, 1.0, 0.0]
    assert [s.values["other"] for s in strata] == [0.5, None, 0.0, 1.0]


def test_recall_by_pairs_is_the_mean_over_the_queries_of_a_stratum() -> None:
    none = torch.empty(0, dtype=torch.int64)
    relevance = Relevance.of(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 0, 2]), none, none)
    ranks, counts = torch.tensor([1, 9, 1, 9]), torch.tensor([3, 4, 150, 1])
    strata = recall_by_pairs(ranks, relevance, counts, "ndcg@5")
    assert [(s.name, s.members, s.measured, s.values["model"]) for s in strata] == [
        ("1", 1, 0, None),
        ("2 to 4", 2, 2, 0.75),
        ("100 and more", 1, 1, 0.0),
    ]
