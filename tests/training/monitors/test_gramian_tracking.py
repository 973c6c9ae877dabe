"""Estimators and MAP are measured along a training, which stays as it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from evergram.data.sampling import Batch
from evergram.encoders.features import SIDES
from evergram.errors import TrainingError
from evergram.evaluation.ranking import Relevance, rank_metrics
from evergram.releasing.upgrade import train
from evergram.training.build import prepare
from evergram.training.callbacks import Callback, Point
from evergram.training.checkpoints.state_file import TrainingState
from evergram.training.corpora import load_corpus, split_for
from evergram.training.diagnose import rivals
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.loop import Trainer
from evergram.training.monitors.gramian_tracking import OWN, Tracking
from evergram.training.monitors.map_watch import MapWatch
from evergram.training.monitors.tensorboard import TensorBoard
from evergram.training.recipe import GramianRecipe, Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")


def tracking(
    recipe: Recipe, chosen: dict[str, GramianRecipe], every: int = 1, sample: int | None = None
) -> Tracking:
    training = split_for(recipe, load_corpus(recipe), 0).training
    return Tracking(chosen, {s: training.counts(s) for s in SIDES}, every=every, sample=sample)


@pytest.mark.parametrize("kind", ["two_tower", pytest.param("graphsage", marks=pytest.mark.long)])
def test_looking_on_changes_nothing(small: Recipe, kind: str) -> None:
    recipe = Recipe.of(small.model_dump(), [f"model.kind={kind}", "training.epochs=1"])
    split = split_for(recipe, load_corpus(recipe), 0)
    unwatched = fit_encoder(recipe, split, 0, RunContext(CPU))
    look = tracking(recipe, rivals([64]), every=3)
    watched = fit_encoder(recipe, split, 0, RunContext(CPU, callbacks=[look]))
    assert torch.equal(unwatched.query, watched.query)
    assert look.steps
    assert set(look.gramian_errors) == {*rivals([64]), OWN}
    assert all(len(errors) == len(look.steps) for errors in look.gradient_errors.values())


@pytest.mark.parametrize(
    "kind", ["factorization", pytest.param("two_tower", marks=pytest.mark.long)]
)
def test_sampled_errors_are_close_to_the_exact_ones_and_state_how_close(
    small: Recipe, kind: str
) -> None:
    recipe = Recipe.of(small.model_dump(), [f"model.kind={kind}", "training.epochs=1"])
    split = split_for(recipe, load_corpus(recipe), 0)
    chosen = {"sampled": GramianRecipe.of({"kind": "sampled", "batch_size": 16})}
    exact, sampled = tracking(recipe, chosen), tracking(recipe, chosen, sample=64)
    fit_encoder(recipe, split, 0, RunContext(CPU, callbacks=[exact, sampled]))
    assert exact.drawn == {"query": 0, "candidate": 0}
    assert exact.sampling == ""
    sizes = {side: len(exact.counts[side]) for side in SIDES}
    assert all(size > 64 for size in sizes.values())
    assert sampled.drawn == {"query": 64, "candidate": 64}
    assert "samples of 64 query rows and 64 candidate rows" in sampled.sampling
    assert len(exact.steps) > 9
    for name in ("sampled", OWN):
        for truths, intervals in (
            (exact.gramian[name], sampled.gramian[name]),
            (exact.gradient[name], sampled.gradient[name]),
        ):
            assert all(truth.low == truth.value == truth.high for truth in truths)
            inside = sum(i.low <= t.value <= i.high for t, i in zip(truths, intervals, strict=True))
            assert inside >= 0.8 * len(truths)
        mean = sampled.mean(sampled.gramian)[name]
        assert mean.low <= exact.mean(exact.gramian)[name].value <= mean.high


def test_an_exact_estimator_has_no_error_and_a_frozen_one_has(small: Recipe) -> None:
    chosen = {
        "exact": GramianRecipe.of({"kind": "exact"}),
        "slow": GramianRecipe.of({"rate": 0.001, "batch_size": 64}),
        "fast": GramianRecipe.of({"rate": 1.0, "batch_size": 64}),
    }

    class Freeze(Callback):
        """Embeddings that stand still are what every average must find."""

        def on_step(self, at: Point, batch: Batch, objective: torch.Tensor) -> None:
            for optimizer in at.training.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = 0.0

    recipe = Recipe.of(small.model_dump(), ["training.epochs=6"])
    look = tracking(recipe, chosen, every=10)
    split = split_for(recipe, load_corpus(recipe), 0)
    fit_encoder(recipe, split, 0, RunContext(CPU, callbacks=[Freeze(), look]))
    last = {name: errors[-1] for name, errors in look.gramian_errors.items()}
    # `exact` is asked to begin before the step that it is measured after: nothing moved.
    assert last["exact"] < 1e-5
    assert last["slow"] < 0.5 * last["fast"]


def test_a_rival_may_draw_adaptively_by_its_own_estimates(small: Recipe) -> None:
    """Its draws are those of a run of its own with the same seed on embeddings that stand still."""
    table = {"kind": "sampled", "batch": "independent", "batch_size": 200}
    chosen = {
        sampler: GramianRecipe.of({**table, "sampler": sampler})
        for sampler in ("linear", "adaptive")
    }
    recipe = Recipe.of(
        small.model_dump(), ["training.epochs=4", "model.scale=1.0", "training.table_rate=1e-9"]
    )
    look = tracking(recipe, chosen, every=2)
    split = split_for(recipe, load_corpus(recipe), 0)
    fit_encoder(recipe, split, 0, RunContext(CPU, callbacks=[look]))
    mean = {name: interval.value for name, interval in look.mean(look.gramian).items()}
    assert 0 < mean["adaptive"] < mean["linear"]


@pytest.mark.parametrize("kind", ["storm", pytest.param("sogram", marks=pytest.mark.long)])
def test_what_is_tracked_goes_on_after_any_step(small: Recipe, kind: str) -> None:
    """Of a run that is resumed, and of one that is saved again before its first step."""
    recipe = Recipe.of(small.model_dump(), ["training.batch_size=900"])
    chosen = {
        "own": GramianRecipe.of({"kind": kind, "batch_size": 32}),
        "pools": GramianRecipe.of({"kind": "sampled", "batch_size": 8, "sampler": "adaptive"}),
    }
    whole = tracking(recipe, chosen, every=2)
    copies = Copies()
    run_of(recipe, whole, copies).fit(epochs=2)
    for state in copies.states[:-1:4]:
        for _ in range(2):
            look = tracking(recipe, chosen, every=2)
            run = run_of(recipe, look, Callback())
            run.load_state(state)
            state = run.state()
        run.fit(epochs=2)
        assert look.steps == whole.steps
        assert (look.gramian, look.gradient) == (whole.gramian, whole.gradient)


class Copies(Callback):
    """Keeps a copy of the state after each step, as a file would hold it."""

    def __init__(self) -> None:
        self.states: list[TrainingState] = []

    def on_step_end(self, run: Trainer) -> None:
        state = run.state()
        tensors = {name: value.clone() for name, value in state.tensors.items()}
        self.states.append(TrainingState(tensors, json.loads(json.dumps(state.facts))))


def run_of(recipe: Recipe, *callbacks: Callback) -> Trainer:
    corpus = split_for(recipe, load_corpus(recipe), 0).training
    settings = FitSettings.of(recipe, corpus, 0)
    return Trainer(*prepare(settings, corpus, CPU), callbacks=callbacks, seed=0)


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


@pytest.mark.parametrize(("popularity", "size"), [(0.0, 10_000), (1.0, 20)])
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


@pytest.mark.long
def test_tensorboard_shows_metrics_errors_and_scores(small: Recipe, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = Recipe.of(small.model_dump(), ["training.epochs=6", "training.batch_size=32"])
    train(recipe, board=tmp_path / "board")
    events = EventAccumulator(str(tmp_path / "board" / "version-0"))
    events.Reload()
    tags = events.Tags()
    assert {"objective", "recall@20", f"Gramian error/{OWN}"} <= set(tags["scalars"])
    assert tags["images"] == ["scores"]
    assert len(events.Scalars("recall@20")) == 6


def test_without_tensorboard_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(TrainingError, match=r"pip install 'evergram\[tensorboard\]'"):
        TensorBoard(tmp_path, (torch.arange(2), torch.arange(2)))
    assert list(tmp_path.iterdir()) == []
