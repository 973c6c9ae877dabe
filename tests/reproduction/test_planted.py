"""The planted corpus, whose draws must follow the probabilities that it states."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduction.planted import LOYAL, Planted

from evergram import Corpus

SIZES = {
    "queries": st.integers(1, 60),
    "candidates": st.integers(1, 500),
    "seed": st.integers(0, 5),
}


def ids(corpus: Corpus, side: str) -> torch.Tensor:
    entities = corpus.queries if side == "query" else corpus.candidates
    keys = torch.tensor(entities.vocabulary.keys.to_pylist())
    return keys[corpus.column(side)]


@settings(max_examples=20, deadline=None)
@given(**SIZES, interactions=st.integers(1, 900))
def test_every_candidate_is_there_and_no_other(
    queries: int, candidates: int, seed: int, interactions: int
) -> None:
    corpus = Planted(queries, candidates, seed).corpus(interactions)
    assert sorted(corpus.candidates.vocabulary.keys.to_pylist()) == list(range(candidates))
    assert len(corpus) >= interactions
    assert int(ids(corpus, "query").max()) < queries


@settings(max_examples=20, deadline=None)
@given(**SIZES)
def test_the_chances_of_a_query_add_up_to_one(queries: int, candidates: int, seed: int) -> None:
    world = Planted(queries, candidates, seed)
    segments = torch.arange(world.segments)
    everything = torch.arange(candidates).expand(len(segments), -1)
    torch.testing.assert_close(
        world.chances(segments, everything).sum(1), torch.ones(len(segments)).double()
    )


@settings(max_examples=20, deadline=None)
@given(**SIZES, k=st.integers(1, 12))
def test_the_best_are_the_best_of_all(queries: int, candidates: int, seed: int, k: int) -> None:
    k = min(k, candidates)
    world = Planted(queries, candidates, seed)
    segments = torch.arange(world.segments)
    everything = torch.arange(candidates).expand(len(segments), -1)
    expected = world.chances(segments, everything).topk(k).values
    torch.testing.assert_close(world.chances(segments, world.best(segments, k)), expected)


def test_draws_follow_the_chances() -> None:
    world, interactions = Planted(40, 300), 200_000
    corpus = world.corpus(interactions)
    query, candidate = (ids(corpus, side)[:interactions] for side in ("query", "candidate"))
    counts = torch.zeros(2, 300, dtype=torch.float64)
    for segment in range(2):
        drawn = candidate[query % world.segments == segment]
        counts[segment] = torch.bincount(drawn, minlength=300)
    chances = world.chances(torch.arange(2), torch.arange(300).expand(2, -1))
    total = counts.sum(1, keepdim=True)
    deviation = (total * chances * (1 - chances)).sqrt()
    z = (counts - total * chances) / deviation
    assert float(z.abs().max()) < 5.5  # of 600 normal variables
    assert float(z.square().mean()) == pytest.approx(1, abs=0.25)


def test_a_candidate_that_nobody_met_is_met_by_one_who_likes_its_cluster() -> None:
    world = Planted(200, 20_000)
    corpus = world.corpus(50)
    query, candidate = (ids(corpus, side)[50:] for side in ("query", "candidate"))
    assert len(torch.unique(candidate)) == len(candidate)
    likes = world.liking(torch.arange(world.segments))
    shares = likes / likes.sum(0)
    met = shares[query % world.segments, candidate % world.clusters].mean()
    expected = (shares.square().sum(0))[candidate % world.clusters].mean()
    assert float(met) == pytest.approx(float(expected), rel=0.05)
    assert float(met) > 2 / world.segments > (1 - LOYAL) / world.segments


def test_the_seed_decides() -> None:
    tables = [Planted(9, 30, s).corpus(99).interactions for s in (0, 0, 1)]
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])
