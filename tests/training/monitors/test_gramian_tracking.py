"""Estimators are measured along a training, which stays as it is."""

from __future__ import annotations

import json

import pytest
import torch

from evergram.data.sampling import Batch
from evergram.encoders.features import SIDES
from evergram.evaluation.gramian_error import OTHER
from evergram.training.build import prepare
from evergram.training.callbacks import Callback, Point
from evergram.training.checkpoints.state_file import TrainingState
from evergram.training.corpora import load_corpus, split_for
from evergram.training.diagnose import rivals
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.loop import Trainer
from evergram.training.monitors.gramian_tracking import OWN, Tracking
from evergram.training.recipe import GramianRecipe, Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")


def tracking(
    recipe: Recipe, chosen: dict[str, GramianRecipe], every: int = 1, sample: int | None = None
) -> Tracking:
    training = split_for(recipe, load_corpus(recipe), 0).training
    return Tracking(chosen, {s: training.counts(s) for s in SIDES}, every=every, sample=sample)


@pytest.mark.parametrize(
    "kind", ["factorization", "two_tower", pytest.param("graphsage", marks=pytest.mark.long)]
)
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


@pytest.mark.parametrize("kind", ["factorization", "two_tower"])
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


def test_a_side_is_sampled_only_where_that_is_cheaper(small: Recipe) -> None:
    recipe = Recipe.of(small.model_dump(), ["training.epochs=1"])
    split = split_for(recipe, load_corpus(recipe), 0)
    sizes = {side: len(split.training.counts(side)) for side in SIDES}
    smaller = min(sizes, key=lambda side: sizes[side])
    look = tracking(recipe, {}, sample=sizes[smaller])
    fit_encoder(recipe, split, 0, RunContext(CPU, callbacks=[look]))
    assert look.drawn[smaller] == 0
    assert look.drawn[OTHER[smaller]] > 0
    with pytest.raises(ValueError, match="sample is 10; it must be at least 64"):
        tracking(recipe, {}, sample=10)


def test_a_pass_over_a_graph_is_exact_whatever_the_sample(small: Recipe) -> None:
    recipe = Recipe.of(small.model_dump(), ["model.kind=lightgcn", "training.epochs=1"])
    split = split_for(recipe, load_corpus(recipe), 0)
    look = tracking(recipe, {}, sample=64)
    fit_encoder(recipe, split, 0, RunContext(CPU, callbacks=[look]))
    assert look.drawn == {"query": 0, "candidate": 0}


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


@pytest.mark.parametrize("kind", ["storm", "sogram"])
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
    for state in copies.states[:-1:2]:
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
