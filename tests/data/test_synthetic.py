"""The planted corpus: the same every time, and its answer is worth finding."""

from __future__ import annotations

import torch

from evergram.data.split import random_split
from evergram.data.synthetic import generate
from evergram.evaluation.ranking import popularity_metrics, rank_metrics
from evergram.training.loop import relevance_of


def test_the_same_arguments_give_the_same_corpus() -> None:
    size = {"queries": 50, "candidates": 40, "interactions": 500}
    one, two = generate(**size), generate(**size)
    assert one.corpus.interactions.equals(two.corpus.interactions)
    assert torch.equal(one.candidate_factors, two.candidate_factors)
    other = generate(**size, seed=1)
    assert not one.corpus.interactions.equals(other.corpus.interactions)


def test_the_planted_ranking_is_far_better_than_popularity() -> None:
    planted = generate()
    split = random_split(planted.corpus, share=0.2, seed=0)
    training = split.training
    query = planted.corpus.queries.vocabulary.rows(training.queries.vocabulary.keys)
    candidate = planted.corpus.candidates.vocabulary.rows(training.candidates.vocabulary.keys)
    relevance = relevance_of(training, split.test)
    oracle = rank_metrics(planted.scores(query)[:, candidate], torch.eye(len(candidate)), relevance)
    baseline = popularity_metrics(training.counts("candidate"), relevance)
    assert oracle["recall@20"] > 2.5 * baseline["recall@20"] > 0.1


def test_items_arrive_ratings_follow_quality_and_popularity_is_skewed() -> None:
    planted = generate()
    corpus = planted.corpus
    early = corpus.column("time") < 15_000
    assert len(torch.unique(corpus.column("candidate")[early])) < 0.8 * len(corpus.candidates)
    value, candidate = corpus.column("value"), corpus.column("candidate")
    assert set(value.tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    pair = torch.stack([value, planted.quality[candidate]])
    assert float(torch.corrcoef(pair)[0, 1]) > 0.5
    counts = corpus.counts("candidate").sort(descending=True).values
    assert int(counts[:100].sum()) > 0.3 * len(corpus)
    assert 0 < corpus.repeats < len(corpus)
