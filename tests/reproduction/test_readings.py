"""The planted corpus, and readings of a training against another way to the same number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduction.gramian import growth, methods
from reproduction.planted import Planted
from reproduction.readings.fresh_map import FreshMap
from reproduction.readings.gramian_errors import GramianErrors
from reproduction.readings.map_over_time import MapOverTime
from reproduction.readings.reading import Reading
from reproduction.readings.score_distributions import ScoreDistributions
from reproduction.recipe import PaperRecipe
from torch import Tensor

from evergram import Corpus, load_corpus, split_for
from evergram.data import Split
from evergram.training import RunContext, Trained, fit_encoder

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
@given(**SIZES)
def test_the_chances_of_a_query_add_up_to_one(queries: int, candidates: int, seed: int) -> None:
    world = Planted(queries, candidates, seed)
    segments = torch.arange(world.segments)
    everything = torch.arange(candidates).expand(len(segments), -1)
    torch.testing.assert_close(
        world.chances(segments, everything).sum(1), torch.ones(len(segments)).double()
    )


def test_draws_follow_the_chances() -> None:
    world, interactions = Planted(40, 300), 200_000
    corpus = world.corpus(interactions)
    # Keys, of which each has an embedding; numbers would share some.
    keys = corpus.candidates.features["cluster_key"].vocabulary.keys
    assert sorted(keys.to_pylist()) == list(range(world.clusters))
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


CPU = torch.device("cpu")


def trained_with(reading: Reading, **training: Any) -> tuple[dict[str, Any], Trained, Split]:
    """Train the tiny recipe with one reading; return what was read."""
    settings = [f"training.{key}={value}" for key, value in training.items()]
    recipe = PaperRecipe.load(methods.TINY, settings)
    split = split_for(recipe, load_corpus(recipe), 0)
    watch = reading.watch(recipe, split)
    trained = fit_encoder(recipe, split, 0, RunContext(CPU, callbacks=[watch], warns=False))
    return watch.read(trained), trained, split


def average_precision(scores: Tensor, relevant: set[int], seen: set[int]) -> float:
    """AP@10 of one query, by walking down the ranked list."""
    order = [int(c) for c in scores.argsort(descending=True) if int(c) not in seen]
    hits, total = 0, 0.0
    for rank, candidate in enumerate(order[:10], 1):
        if candidate in relevant:
            hits += 1
            total += hits / rank
    return total / min(10, len(relevant))


def naive_map(
    trained: Trained, pairs: tuple[Tensor, Tensor], known: tuple[Tensor, Tensor]
) -> float:
    scores = trained.query.double() @ trained.candidate.double().T
    values = []
    for query in sorted(set(pairs[0].tolist())):
        relevant = set(pairs[1][pairs[0] == query].tolist())
        seen = set(known[1][known[0] == query].tolist())
        values.append(average_precision(scores[query], relevant, seen))
    return sum(values) / len(values)


def test_map_at_the_end_is_that_of_the_trained_model_by_hand() -> None:
    # One epoch, so that the model at the best epoch is the one at the end.
    series, trained, split = trained_with(MapOverTime(), epochs=1)
    corpus = split.training
    known = corpus.column("query"), corpus.column("candidate")
    nothing = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    held = split.selection.query, split.selection.candidate
    assert series["training"] == [pytest.approx(naive_map(trained, known, nothing), abs=1e-5)]
    assert series["validation"] == [pytest.approx(naive_map(trained, held, known), abs=1e-5)]
    assert series["test"]["model"] == trained.metrics["model"]["map@10"]
    assert series["step"] == [len(corpus) // 64]
    few, _, _ = trained_with(MapOverTime(queries=5, candidates=10), epochs=1)
    assert few["validation"][0] > series["validation"][0]


def test_a_reading_changes_nothing_in_the_training() -> None:
    errors = GramianErrors({"a": methods.looking_on(methods.sampling(), 16)}, 5)
    readings = MapOverTime(), ScoreDistributions(), errors
    one, two, three = (trained_with(reading, epochs=2)[1].query for reading in readings)
    assert torch.equal(one, two)
    assert torch.equal(one, three)


def test_errors_are_measured_for_each_estimator_and_fall_with_the_batch() -> None:
    tables = {str(size): methods.looking_on(methods.sampling(), size) for size in (4, 400)}
    series, _, _ = trained_with(GramianErrors(tables, 5), epochs=2)
    assert len(series["step"]) == len(series["gramian"]["4"]) == len(series["gradient"]["4"])
    small, large = (sum(series["gramian"][name]) for name in ("4", "400"))
    # Ten times the error for a hundredth of the batch, about.
    assert 4 < small / large < 25


def test_fresh_map_is_the_mean_over_interactions_drawn_afresh() -> None:
    world = Planted(60, 200)
    settings = ["model.kind=factorization", "model.dim=4", "training.epochs=1", "data.kind=python"]
    recipe = PaperRecipe.load(growth.RECIPE, [*settings, "split.share=0.01"])
    corpus = world.corpus(3000)
    split = split_for(recipe, corpus, 0)
    watch = FreshMap(60, 200, every=23, judged=10).watch(recipe, split)
    trained = fit_encoder(recipe, split, 0, RunContext(CPU, callbacks=[watch], warns=False))
    series = watch.read(trained)
    assert series["step"] == [23]  # the last step of the only epoch
    keys = {
        side: torch.tensor(entities.vocabulary.keys.to_pylist())
        for side, entities in (
            ("query", split.training.queries),
            ("candidate", split.training.candidates),
        )
    }
    rows = torch.randperm(60, generator=torch.Generator().manual_seed(recipe.seed))[:10]
    lists = keys["candidate"][(trained.query[rows] @ trained.candidate.T).topk(10).indices]
    segments = keys["query"][rows] % world.segments
    everything = torch.arange(200).expand(10, -1)
    draw = torch.Generator().manual_seed(7)
    drawn = torch.multinomial(
        world.chances(segments, everything), 40_000, replacement=True, generator=draw
    )
    hits = drawn[:, :, None] == lists[:, None, :]  # AP of one target is 1 / its place
    by_hand = (hits / torch.arange(1, 11)).sum(2).mean()
    assert series["fresh"][0] == pytest.approx(float(by_hand), rel=0.03)
    assert series["popularity"] < series["best"]
    assert series["fresh"][0] <= series["best"]
