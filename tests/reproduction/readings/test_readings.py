"""Readings, each against another way to the same number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reproduction.planted import Planted
from reproduction.readings.fresh_map import FreshMap
from reproduction.readings.gramian_errors import GramianErrors
from reproduction.readings.map_over_time import MapOverTime
from reproduction.readings.reading import CpuClock, Reading
from reproduction.readings.score_distributions import ScoreDistributions
from torch import Tensor

from evergram import Recipe, load_corpus, split_for
from evergram.data import Split
from evergram.training import RunContext, Trained, fit_encoder
from reproduction.gramian import growth, methods

CPU = torch.device("cpu")


def trained_with(reading: Reading, **training: Any) -> tuple[dict[str, Any], Trained, Split]:
    """Train the tiny recipe with one reading; return what was read."""
    settings = [f"training.{key}={value}" for key, value in training.items()]
    recipe = Recipe.load(methods.TINY, settings)
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


def test_every_evaluation_is_one_point_and_time_goes_on() -> None:
    series, trained, _ = trained_with(MapOverTime(), epochs=3)
    assert series["epoch"] == [1, 2, 3]
    assert series["cpu_seconds"] == sorted(series["cpu_seconds"])
    assert series["cpu_seconds"][-1] > 0
    selected = [entry["map@10"] for entry in trained.history]
    assert series["validation"] == pytest.approx(selected, abs=1e-6)


def test_points_between_evaluations_change_neither_the_training_nor_the_others() -> None:
    plain, one, split = trained_with(MapOverTime(), epochs=2)
    finer, two, _ = trained_with(MapOverTime(every=10), epochs=2)
    assert torch.equal(one.query, two.query)
    steps = len(split.training) // 64
    expected = sorted({*range(10, 2 * steps + 1, 10), *plain["step"]})
    assert finer["step"] == expected
    assert {len(values) for name, values in finer.items() if isinstance(values, list)} == {
        len(expected)
    }
    at = [expected.index(step) for step in plain["step"]]
    for part in ("training", "validation"):
        assert [finer[part][i] for i in at] == plain[part]


def test_a_sample_of_candidates_holds_the_targets_and_is_easier() -> None:
    whole, _, _ = trained_with(MapOverTime(), epochs=1)
    few, _, _ = trained_with(MapOverTime(queries=5, candidates=10), epochs=1)
    assert few["validation"][0] > whole["validation"][0]


def test_a_reading_changes_nothing_in_the_training() -> None:
    errors = GramianErrors({"a": methods.looking_on(methods.sampling(), 16)}, 5)
    vectors = [
        trained_with(reading, epochs=2)[1].query
        for reading in (MapOverTime(), ScoreDistributions(), errors)
    ]
    assert torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[0], vectors[2])


def test_errors_are_measured_for_each_estimator_and_fall_with_the_batch() -> None:
    tables = {str(size): methods.looking_on(methods.sampling(), size) for size in (4, 400)}
    series, _, _ = trained_with(GramianErrors(tables, 5), epochs=2)
    assert len(series["step"]) == len(series["gramian"]["4"]) == len(series["gradient"]["4"])
    small, large = (sum(series["gramian"][name]) for name in ("4", "400"))
    # Ten times the error for a hundredth of the batch, about.
    assert 4 < small / large < 25


def test_densities_have_area_one_and_the_means_of_their_pairs() -> None:
    series, trained, split = trained_with(ScoreDistributions(samples=20_000, bins=50), epochs=1)
    (moment,) = series["moments"]
    edges = torch.tensor(moment["edges"], dtype=torch.float64)
    middle = (edges[1:] + edges[:-1]) / 2
    scores = trained.query @ trained.candidate.T
    observed = scores[split.training.column("query"), split.training.column("candidate")]
    for name, mean in (("observed", observed.mean()), ("random", scores.mean())):
        density = torch.tensor(moment[name], dtype=torch.float64)
        assert float((density * edges.diff()).sum()) == pytest.approx(1)
        spread = float(edges[-1] - edges[0])
        assert float((density * edges.diff() * middle).sum()) == pytest.approx(
            float(mean), abs=0.02 * spread
        )


def test_settings_tell_readings_apart() -> None:
    assert MapOverTime().settings() != MapOverTime(queries=3).settings()
    assert MapOverTime().settings()["reading"] == "map"
    # Results from before there was `every` keep their keys.
    assert MapOverTime().settings() == {"reading": "map", "queries": 2000, "candidates": 50_000}
    assert MapOverTime(every=5).settings()["every"] == 5


def test_the_clock_counts_between_ticks_and_not_what_is_left_out() -> None:
    clock = CpuClock()

    def work() -> None:
        sum(i * i for i in range(300_000))

    clock.tick()
    assert clock.seconds == 0
    work()
    clock.tick()
    first = clock.seconds
    assert first > 0
    work()
    clock.resume()
    clock.tick()
    assert clock.seconds - first < first / 2


def test_fresh_map_is_the_mean_over_interactions_drawn_afresh() -> None:
    world = Planted(60, 200)
    settings = ["model.kind=factorization", "model.dim=4", "training.epochs=1", "data.kind=python"]
    recipe = Recipe.load(growth.RECIPE, [*settings, "split.share=0.01"])
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
