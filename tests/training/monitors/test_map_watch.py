"""MAP@10 is measured by the clock while training continues."""

from __future__ import annotations

import json

import pytest
import torch

from evergram.evaluation.ranking import Relevance, rank_metrics
from evergram.training.build import prepare
from evergram.training.callbacks import Point
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.monitors.map_watch import MapWatch
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")


def test_a_watched_training_is_the_same_and_is_measured_by_the_clock(small: Recipe) -> None:
    recipe = Recipe.of(small.model_dump(), ["training.watch_minutes=0.001", "training.epochs=6"])
    split = split_for(recipe, load_corpus(recipe), 0)
    watched = fit_encoder(recipe, split, 0, RunContext(CPU))
    unwatched = fit_encoder(
        Recipe.of(small.model_dump(), ["training.epochs=6"]), split, 0, RunContext(CPU)
    )
    assert torch.equal(watched.query, unwatched.query)
    assert watched.watched
    assert not unwatched.watched
    times = [entry["seconds"] for entry in watched.watched]
    assert times == sorted(times)
    assert times[0] >= 0.06
    for entry in watched.watched:
        assert 0 <= entry["map@10 validation"] <= 1
        assert 0 <= entry["map@10 training"] <= 1


@pytest.mark.parametrize("popularity", [0.0, 1.0])
@pytest.mark.parametrize("size", [20, 10_000])
def test_the_fixed_candidates_and_the_targets_are_ranked_as_they_are_published(
    small: Recipe, size: int, popularity: float
) -> None:
    scaled = ["model.normalize=true", f"model.popularity={popularity}"]
    small = Recipe.of(small.model_dump(), scaled)
    split = split_for(small, load_corpus(small), 0)
    watch = MapWatch(split, minutes=1, size=size, seed=0)
    step, _, _ = prepare(FitSettings.of(small, split.training, 0), split.training, CPU)
    watch._measure(Point(1, 1, 60.0, step))
    watch.on_end(Point(1, 1, 60.0, step))
    vectors = step.encoder.embed_all(step.scene)
    query, candidate = vectors["query"], vectors["candidate"]
    corpus, pairs = split.training, split.selection
    fixed = watch.candidates
    assert len(fixed) <= len(corpus.candidates)
    place = torch.full((len(corpus.candidates),), -1)
    place[fixed] = torch.arange(len(fixed))
    seen = place[corpus.column("candidate")]
    expected = rank_metrics(
        query,
        candidate[fixed],
        Relevance.of(
            pairs.query,
            torch.where(pairs.candidate >= 0, place[pairs.candidate], -1),
            corpus.column("query")[seen >= 0],
            seen[seen >= 0],
        ),
        ["map@10"],
    )
    assert watch.records[0]["map@10 validation"] == pytest.approx(expected["map@10"])


def test_a_measurement_that_is_running_is_part_of_the_state(small: Recipe) -> None:
    split = split_for(small, load_corpus(small), 0)
    step, _, _ = prepare(FitSettings.of(small, split.training, 0), split.training, CPU)
    watch, resumed = (MapWatch(split, minutes=1, size=50, seed=0) for _ in range(2))
    watch.due = 120.0
    watch._measure(Point(1, 1, 60.0, step))
    state = json.loads(json.dumps(watch.state_dict()))
    assert [record["seconds"] for record in state["records"]] == [60.0]
    resumed.load_state_dict(state)
    assert (resumed.records, resumed.due) == (watch.records, 120.0)
