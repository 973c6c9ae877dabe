"""The rank of every target, against one count a target in Python."""

from __future__ import annotations

import pytest
import torch

from evergram.errors import ShapeError
from evergram.evaluation import score_blocks
from evergram.evaluation.breakdown.target_ranks import (
    UNRANKED,
    metric_of_ranks,
    owners,
    target_ranks,
)
from evergram.evaluation.ranking import Relevance, query_metrics


def example(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, Relevance]:
    """Integers, so that scores tie and no order of summing matters."""
    query = torch.randint(-2, 3, (12, 3), generator=generator).float()
    candidate = torch.randint(-2, 3, (30, 3), generator=generator).float()
    pairs = torch.randint(0, 12, (40,), generator=generator)
    targets = torch.randint(-1, 30, (40,), generator=generator)
    seen = [torch.randint(0, n, (60,), generator=generator) for n in (12, 30)]
    return query, candidate, Relevance.of(pairs, targets, seen[0], seen[1])


@pytest.mark.parametrize("size", [1 << 25, 256])
def test_a_rank_is_the_number_of_unseen_candidates_that_score_as_much(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch, size: int
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
    monkeypatch.setattr(score_blocks, "SCORE_BYTES", size)
    assert target_ranks(query, candidate, relevance).tolist() == expected
    assert {0, UNRANKED} < set(expected)


@pytest.mark.parametrize("name", ["recall@5", "ndcg@7", "map@3", "recall@50", "map@31"])
def test_metrics_by_ranks_are_those_of_a_ranking(generator: torch.Generator, name: str) -> None:
    query, candidate, relevance = example(generator)
    ranks = target_ranks(query, candidate, relevance)
    expected = query_metrics(query, candidate, relevance, [name])[name]
    assert torch.equal(metric_of_ranks(name, ranks, relevance), expected)
    assert owners(relevance).bincount().tolist() == relevance.target_offsets.diff().tolist()


def test_vectors_of_two_versions_are_refused(generator: torch.Generator) -> None:
    query, candidate, relevance = example(generator)
    with pytest.raises(ShapeError, match="Queries have dim 2 and candidates 3"):
        target_ranks(query[:, :2], candidate, relevance)
