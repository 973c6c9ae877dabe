"""Epochs of steps: resumed from a state, with the next batch in sight, without denormals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.training import loop
from evergram.training.build import prepare
from evergram.training.callbacks import Callback, Point
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.loop import Trainer, _with_next
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")


def half_of_the_tiniest() -> float:
    return float(torch.tensor([1e-310], dtype=torch.float64) * 0.5)


class Denormals(Callback):
    def __init__(self) -> None:
        self.seen: set[float] = set()

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        self.seen.add(half_of_the_tiniest())


class Means(Callback):
    def __init__(self) -> None:
        self.objectives: list[float] = []

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        self.objectives.append(objective)


def test_denormals_are_flushed_in_training_and_nowhere_else(small: Recipe) -> None:
    assert half_of_the_tiniest() > 0
    look = Denormals()
    fit_encoder(
        small, split_for(small, load_corpus(small), 0), 0, RunContext(CPU, callbacks=[look])
    )
    assert look.seen == {0.0}
    assert half_of_the_tiniest() > 0


def run_of(recipe: Recipe) -> Trainer:
    corpus = split_for(recipe, load_corpus(recipe), 0).training
    settings = FitSettings.of(recipe, corpus, 0)
    return Trainer(*prepare(settings, corpus, CPU), seed=settings.version_seed)


@pytest.mark.parametrize("gramian", [["gramian.kind=storm", "gramian.rate=0.1"], []])
def test_a_run_continues_from_the_state_of_another(small: Recipe, gramian: list[str]) -> None:
    recipe = Recipe.of(small.model_dump(), gramian)
    whole, first, second = (run_of(recipe) for _ in range(3))
    whole.fit(epochs=3)
    first.fit(epochs=1)
    first.seconds = 0.5
    second.load_state(first.state())
    first.fit(epochs=2)  # what is restored is a copy
    assert (second.epoch, second.steps) == (1, len(second.sampler))
    assert second.fit(epochs=3) == "epochs"
    for name, value in whole.parameters().items():
        assert torch.equal(value, second.parameters()[name])
    assert second.seconds > 0.5


def test_a_finished_run_gives_the_parameters_that_were_kept(small: Recipe) -> None:
    run = run_of(small)
    run.fit(epochs=1)
    kept = run.parameters()
    run.fit(epochs=2)
    encoder = run.finish(kept)
    assert not encoder.training
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, kept[f"encoder|{name}"])


def test_a_limit_of_steps_may_end_a_run_within_an_epoch(small: Recipe) -> None:
    run = run_of(small)
    steps = len(run.sampler) + 2
    assert run.fit(steps=steps) == "steps"
    assert (run.steps, run.epoch) == (steps, 2)


def test_each_batch_comes_with_the_next_one_and_the_last_with_none() -> None:
    rows = torch.arange(4)
    weight = torch.ones(1, 1)
    batches = [Batch(rows[i], rows[i], rows[i].float(), weight, weight) for i in range(3)]
    pairs = list(_with_next(iter(batches), None))
    assert [current[0] is batches[i] for i, (current, _) in enumerate(pairs)] == [True] * 3
    assert [following and following[0] for _, following in pairs] == [*batches[1:], None]


def test_a_mean_of_many_steps_is_not_one_of_rounded_sums(
    small: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum in float32 that is past 2²⁴ takes no 1 up."""
    objectives = [2.0**24, *[1.0] * 999]
    monkeypatch.setattr(
        loop, "run_epoch", lambda *_: ((None, torch.tensor(value)) for value in objectives)
    )
    means = Means()
    run = run_of(small)
    run.callbacks.append(means)
    run.fit(epochs=1)
    assert means.objectives == [(2**24 + 999) / 1000]
