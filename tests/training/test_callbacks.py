"""A run's hooks: their order, what may stop it, and that they are called whatever happens."""

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
from evergram.training.build import prepare
from evergram.training.callbacks import Budget, Callback, FiniteLoss, Point
from evergram.training.corpora import load_corpus, split_for
from evergram.training.loop import Trainer
from evergram.training.monitors.early_stopping import EarlyStopping
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")


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


def test_a_rate_of_tables_is_named_only_where_there_are_tables(
    small: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, layers = trainer(small), torch.nn.Linear(2, 2)
    monkeypatch.setattr(run.encoder, "modules", layers.modules)
    with pytest.raises(TrainingError, match=r"lower training\.layer_rate \(0\.1\) or task"):
        FiniteLoss({"table_rate": 0.3, "layer_rate": 0.1}).on_epoch(run, float("nan"), last=False)


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
