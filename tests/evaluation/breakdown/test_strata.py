"""Recall by strata, counted by hand."""

from __future__ import annotations

import torch

from evergram.evaluation.breakdown.strata import (
    popularity_strata,
    recall_by_pairs,
    recall_by_popularity,
)
from evergram.evaluation.ranking import Relevance


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
