"""Epochs of steps, and a run's hooks: their order, what may stop it, and that all are called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.errors import TrainingError
from evergram.training import loop
from evergram.training.build import prepare
from evergram.training.callbacks import Budget, Callback, FiniteLoss, Point
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.loop import Trainer
from evergram.training.monitors.early_stopping import EarlyStopping
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


def test_a_finished_run_gives_the_parameters_that_were_kept(small: Recipe) -> None:
    run = run_of(small)
    run.fit(epochs=1)
    kept = run.parameters()
    run.fit(epochs=2)
    encoder = run.finish(kept)
    assert not encoder.training
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, kept[f"encoder|{name}"])


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


class Recorder(Callback):
    """Writes down its hooks, and stops the run with `word` after so many epochs."""

    def __init__(self, stop_after: int = 99) -> None:
        self.hooks: list[str] = []
        self.stop_after = stop_after

    def on_start(self, run: Trainer) -> None:
        self.hooks.append("start")

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        if self.hooks[-1] != "steps":
            self.hooks.append("steps")

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        self.hooks.append(f"epoch {run.epoch}{' last' if last else ''}")

    def on_evaluation(self, at: Point, record: Mapping[str, float]) -> None:
        self.hooks.append(f"evaluation {record['metric']:g}")

    def on_epoch_end(self, run: Trainer, last: bool) -> None:
        self.hooks.append(f"end of {run.epoch}{' last' if last else ''}")

    def on_end(self, at: Point) -> None:
        self.hooks.append("end")

    def stop(self, run: Trainer) -> str:
        return "word" if run.epoch >= self.stop_after else ""


def trainer(recipe: Recipe, *callbacks: Callback) -> Trainer:
    split = split_for(recipe, load_corpus(recipe), 0)
    return Trainer(
        *prepare(FitSettings.of(recipe, split.training, 0), split.training, CPU),
        callbacks=callbacks,
    )


def test_hooks_come_in_order_and_evaluations_reach_every_callback(small: Recipe) -> None:
    recorder = Recorder()
    stopping = EarlyStopping("metric", every=2, evaluate=lambda run: run.epoch / 10)
    run = trainer(small, stopping, recorder)
    assert run.fit(epochs=3) == "epochs"
    assert recorder.hooks == [
        *("start", "steps", "epoch 1", "end of 1"),
        *("steps", "evaluation 0.2", "epoch 2", "end of 2"),
        *("steps", "evaluation 0.3", "epoch 3 last", "end of 3 last"),
        "end",
    ]
    assert (stopping.best_epoch, stopping.best) == (3, 0.3)
    assert stopping.kept.keys() == run.parameters().keys()


def test_a_callback_a_budget_or_patience_stops_a_run(small: Recipe) -> None:
    assert trainer(small, Recorder(stop_after=2)).fit(epochs=5) == "word"
    run = trainer(small, Budget(1e-9))
    assert run.fit(epochs=5) == "budget"
    assert run.epoch == 1
    stopping = EarlyStopping("metric", patience=2, evaluate=lambda run: -run.epoch / 10)
    run = trainer(small, stopping)
    assert run.fit(epochs=9) == "patience"
    assert run.epoch == 3
    run = trainer(small)
    assert run.fit(steps=3) == "steps"
    assert (run.steps, run.epoch) == (3, 1)


def test_a_run_ends_its_callbacks_by_an_error_too(small: Recipe) -> None:
    class Fails(Callback):
        def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
            raise KeyboardInterrupt

    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        trainer(small, Fails(), recorder).fit(epochs=2)
    assert recorder.hooks[-1] == "end"
    run = trainer(small)
    with pytest.raises(TrainingError, match=r"The loss is nan in epoch 0; lower .*\(0\.3\)"):
        FiniteLoss({"table_rate": 0.3}).on_epoch(run, float("nan"), last=False)


def test_callbacks_that_draw_or_not_leave_the_run_as_it_is(small: Recipe) -> None:
    plain, watched = trainer(small), trainer(small, Recorder())
    state = torch.get_rng_state()
    plain.fit(epochs=2)
    assert torch.equal(torch.get_rng_state(), state), "the global generator was moved"
    torch.rand(3)
    watched.fit(epochs=2)
    for name, value in plain.parameters().items():
        assert torch.equal(value, watched.parameters()[name])


@pytest.mark.long  # it trains pilots
def test_the_python_of_the_training_page_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "training.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    (block,) = (text for text in blocks if "callbacks" in text)
    names: dict[str, Any] = {}
    exec(compile(block, page.name, "exec"), names)
    training = names["artefact"].metrics["training"]
    assert training["ended"] == "enough"
    assert training["epochs"] == len(names["watching"].values) == 5
