"""Epochs of steps, a run's hooks and what stops it, and the progress that is shown of it."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.fits import CPU, changed, fitted, split_of, trainer_of
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.errors import TrainingError
from evergram.log_lines import LogFormat, set_log_format
from evergram.training import loop, progress
from evergram.training.build import final_split
from evergram.training.callbacks import Callback, Limits
from evergram.training.fit import Refit, RunContext, fit_encoder
from evergram.training.loop import Trainer
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.selection import EarlyStopping
from evergram.training.step import Step


def half_of_the_tiniest() -> float:
    return float(torch.tensor([1e-310], dtype=torch.float64) * 0.5)


class Denormals(Callback):
    def __init__(self) -> None:
        self.seen: set[float] = set()

    def on_step(self, run: Trainer, batch: Batch, objective: Tensor) -> None:
        self.seen.add(half_of_the_tiniest())


def test_denormals_are_flushed_in_training_and_nowhere_else(small: Recipe) -> None:
    assert half_of_the_tiniest() > 0
    look = Denormals()
    fitted(small, [look])
    assert look.seen == {0.0}
    assert half_of_the_tiniest() > 0


def test_a_mean_of_many_steps_is_not_one_of_rounded_sums(
    small: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum in float32 that is past 2²⁴ takes no 1 up."""
    objectives = [2.0**24, *[1.0] * 999]
    monkeypatch.setattr(
        loop, "run_epoch", lambda *_: ((None, torch.tensor(value)) for value in objectives)
    )
    recorder = Recorder()
    trainer_of(small, recorder).fit(epochs=1)
    assert recorder.objectives == [(2**24 + 999) / 1000]


class Recorder(Callback):
    """Writes down its hooks, and stops the run with `word` after so many epochs."""

    def __init__(self, stop_after: int = 99) -> None:
        self.hooks: list[str] = [""]
        self.objectives: list[float] = []
        self.stop_after = stop_after

    def on_start(self, run: Trainer) -> None:
        self.hooks.append("start")

    def on_step(self, run: Trainer, batch: Batch, objective: Tensor) -> None:
        if self.hooks[-1] != "steps":
            self.hooks.append("steps")

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        self.objectives.append(objective)
        self.hooks.append(f"epoch {run.epoch}{' last' if last else ''}")

    def on_evaluation(self, run: Trainer, record: Mapping[str, float]) -> None:
        self.hooks.append(f"evaluation {record['metric']:g}")

    def on_epoch_end(self, run: Trainer, last: bool) -> None:
        self.hooks.append(f"end of {run.epoch}{' last' if last else ''}")

    def on_end(self, run: Trainer) -> None:
        self.hooks.append("end")

    def stop(self, run: Trainer) -> str:
        return "word" if run.epoch >= self.stop_after else ""


def test_hooks_come_in_order_and_evaluations_reach_every_callback(small: Recipe) -> None:
    recorder = Recorder()
    stopping = EarlyStopping("metric", every=2, evaluate=lambda run: run.epoch / 10)
    run = trainer_of(small, stopping, recorder)
    assert run.fit(epochs=3) == "epochs"
    assert recorder.hooks[1:] == [
        *("start", "steps", "epoch 1", "end of 1"),
        *("steps", "evaluation 0.2", "epoch 2", "end of 2"),
        *("steps", "evaluation 0.3", "epoch 3 last", "end of 3 last"),
        "end",
    ]
    assert (stopping.best_epoch, stopping.best) == (3, 0.3)
    assert stopping.kept.keys() == run.parameters().keys()


def test_callbacks_that_draw_or_not_leave_the_run_as_it_is(small: Recipe) -> None:
    plain, watched = trainer_of(small), trainer_of(small, Recorder())
    state = torch.get_rng_state()
    plain.fit(epochs=2)
    assert torch.equal(torch.get_rng_state(), state), "the global generator was moved"
    torch.rand(3)
    watched.fit(epochs=2)
    for name, value in plain.parameters().items():
        assert torch.equal(value, watched.parameters()[name])


def test_a_callback_a_budget_or_patience_stops_a_run(small: Recipe) -> None:
    assert trainer_of(small, Recorder(stop_after=2)).fit(epochs=5) == "word"
    stopping = EarlyStopping("metric", patience=2, evaluate=lambda run: -run.epoch / 10)
    for callback, word, epoch in ((Limits(1e-9), "budget", 1), (stopping, "patience", 3)):
        run = trainer_of(small, callback)
        assert (run.fit(epochs=9), run.epoch) == (word, epoch)
    run = trainer_of(small)
    assert run.fit(steps=3) == "steps"
    assert (run.steps, run.epoch) == (3, 1)


def test_a_run_ends_its_callbacks_by_an_error_too(small: Recipe) -> None:
    class Fails(Callback):
        def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
            raise KeyboardInterrupt

    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        trainer_of(small, Fails(), recorder).fit(epochs=2)
    assert recorder.hooks[-1] == "end"


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


def test_the_best_epoch_is_kept(small: Recipe) -> None:
    trained = fitted(changed(small, "training.epochs=6"))
    best = max(trained.history, key=lambda record: record["recall@20"])
    assert trained.best_epoch == best["epoch"]
    again = fitted(changed(small, f"training.epochs={trained.best_epoch}"))
    assert torch.equal(again.query, trained.query)


def test_a_budget_ends_training_and_a_loss_that_explodes_is_a_sentence(small: Recipe) -> None:
    trained = fitted(changed(small, "training.epochs=500", "training.budget=0.05"))
    assert trained.ended == "budget"
    assert 0 < len(trained.history) < 500
    bad = ("training.table_rate=1e30", "task.penalty=1e9")
    for more in ([], ["model.kind=two_tower"]):
        with pytest.raises(TrainingError, match=r"lower training\.table_rate"):
            fitted(changed(small, *bad, *more))


def test_nothing_of_a_run_waits_for_the_collector_to_be_freed(small: Recipe) -> None:
    """A run is as large as what is published of it, and would stay beside it."""
    recipe = changed(small, "training.epochs=2", "training.refit=true")
    split = split_of(recipe)
    again = Refit(final_split(split, refits=True))
    # What the first one of a process imports leaves the frames that made it to the collector.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    gc.collect()
    gc.disable()
    try:
        trained = fit_encoder(recipe, split, 0, RunContext(CPU), None, again)
        assert trained.best_epoch
        assert not [kept for kept in gc.get_objects() if type(kept) in (Trainer, Step)]
    finally:
        gc.enable()


def test_a_pipe_gets_lines_with_speed_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Progress().of("seed 1").task("version 0", 10, at_most=True) as task:
        task.advance(5, 640)
        task.describe("epoch 1 loss 0.5")
    with Progress().task("texts", 10) as task:  # it describes nothing
        task.advance(1, 1)
        monkeypatch.setattr(progress, "EVERY", 0.0)
        task.advance(1, 1)
    described, other = capsys.readouterr().err.splitlines()
    line = r"seed 1, version 0: epoch 1 loss 0\.5, [\d,]+ examples/s, at most \d+ s left"
    assert re.fullmatch(line, described)
    assert re.fullmatch(r"texts: [\d,]+ examples/s, \d+ s left", other)
    monkeypatch.undo()
    for quiet in (False, True):
        shown = Progress.of_choice(not quiet).without_epochs().of("seed 1")
        shown.say("One seed.")
        with shown.task("version 0", 10) as task:
            task.advance(1, 1)
            task.describe("epoch 1")
        assert capsys.readouterr() == ("", "" if quiet else "seed 1, One seed.\n")


@pytest.fixture
def as_json() -> Iterator[None]:
    set_log_format(LogFormat.json)
    yield
    set_log_format(LogFormat.text)


@pytest.mark.usefixtures("as_json")
def test_as_json_a_line_has_the_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    with Progress().of("seed 1").task("version 0", 10) as task:
        now[0] += 2
        task.advance(5, 640)
        task.describe("epoch 1 loss 0.5", epoch=1, loss=0.5)
        task.advance(5, 640)
    with Progress().task("texts", 30) as task:
        for _ in range(30):
            now[0] += 1
            task.advance(1, 2)
        Progress().say("Nearly there.")
    with Progress(quiet=True).task("few", 3) as task:
        task.advance(3, 3)
    first, end, *lines = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["message"].startswith("seed 1, version 0: epoch 1 loss 0.5, ")
    figures = {"event": "progress", "task": "seed 1, version 0", "epoch": 1, "loss": 0.5}
    figures |= {"done": 5, "total": 10, "examples_per_second": 320, "seconds_left": 2}
    assert first.items() >= figures.items()
    # Without a description it says how far it is, and at the end in any case.
    assert end["done"] == 10
    assert [line.get("done") for line in lines] == [10, 20, 30, None]
    assert [line["seconds_left"] for line in lines[:3]] == [20, 10, 0]
