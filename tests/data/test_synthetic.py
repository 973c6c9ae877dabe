"""The planted corpus is the same every time, and its answer can be learned."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch

from evergram.data import generate, random_split
from evergram.data.split import HeldOut
from evergram.data.synthetic import Planted
from evergram.evaluation.ranking import popularity_metrics, rank_metrics, relevance_of


def test_the_same_arguments_give_the_same_corpus() -> None:
    one, two, other = (
        generate(queries=50, candidates=40, interactions=500, seed=seed) for seed in (0, 0, 1)
    )
    assert one.corpus.interactions.equals(two.corpus.interactions)
    assert torch.equal(one.candidate_factors, two.candidate_factors)
    assert not one.corpus.interactions.equals(other.corpus.interactions)
    for interactions in (1, 3, 80):
        corpus = generate(queries=5, candidates=5, interactions=interactions, slices=40).corpus
        assert corpus.column("time").tolist() == list(range(interactions))


@pytest.fixture(scope="module")
def planted() -> Planted:
    return generate()


@pytest.mark.long
def test_the_planted_ranking_is_far_better_than_popularity(planted: Planted) -> None:
    split = random_split(planted.corpus, share=0.2, held_out=HeldOut("test"))
    training = split.training
    query = planted.corpus.queries.vocabulary.rows(training.queries.vocabulary.keys)
    candidate = planted.corpus.candidates.vocabulary.rows(training.candidates.vocabulary.keys)
    relevance = relevance_of(training, split.test)
    oracle = rank_metrics(planted.scores(query)[:, candidate], torch.eye(len(candidate)), relevance)
    baseline = popularity_metrics(training.counts("candidate"), relevance)
    assert oracle["recall@20"] > 2 * baseline["recall@20"] > 0.1


@pytest.mark.long
def test_items_arrive_ratings_follow_quality_and_popularity_is_skewed(planted: Planted) -> None:
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


@pytest.mark.long
def test_candidates_of_a_group_are_alike(planted: Planted) -> None:
    group = planted.corpus.candidates.features["group"]
    assert torch.equal(group.offsets.diff(), torch.ones(len(group.indices), dtype=torch.int64))
    same = group.indices[:, None] == group.indices
    alike = planted.candidate_factors @ planted.candidate_factors.T
    assert float(alike[same].mean()) > float(alike[~same].mean()) + 0.5
    tags = planted.corpus.candidates.features["tags"]
    assert set(tags.offsets.diff().tolist()) == {1, 2, 3}
    # A tag "t3-1" is mostly borne by group "g3".
    keys = tags.vocabulary.keys.take(pa.array(tags.indices.numpy())).to_pylist()
    groups = group.vocabulary.keys.take(pa.array(group.indices.numpy())).to_pylist()
    owner = torch.repeat_interleave(tags.offsets.diff()).tolist()
    own = [key[1:].split("-")[0] == groups[i][1:] for key, i in zip(keys, owner, strict=True)]
    assert sum(own) > 0.7 * len(own)
