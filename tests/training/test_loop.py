"""Epochs of steps, and a run's hooks: their order, what may stop it, and that all are called."""

from __future__ import annotations

import gc
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
from evergram.training.corpora import final_split, load_corpus, split_for
from evergram.training.fit import Refit, RunContext, Trained, fit_encoder
from evergram.training.loop import Trainer
from evergram.training.monitors.early_stopping import EarlyStopping
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.step import Step

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


def run(recipe: Recipe) -> Trained:
    split = split_for(recipe, load_corpus(recipe), 0)
    return fit_encoder(recipe, split, 0, RunContext(CPU))


SETTINGS = {
    "sogram": [],
    "exact": ["gramian.kind=exact"],
    "storm": ["gramian.kind=storm", "gramian.rate=0.1"],
    "storm, apart": ["gramian.kind=storm", "gramian.rate=auto", "gramian.batch=independent"],
    "sagram": ["gramian.kind=sagram"],
    "sagram 1": ["gramian.kind=sagram", "gramian.beta=1", "gramian.batch=independent"],
    "sampled": ["gramian.kind=sampled", "gramian.batch=independent", "gramian.sampler=sqrt"],
    "adaptive": ["gramian.kind=sampled", "gramian.batch=independent", "gramian.sampler=adaptive"],
    "adaptive, sogram": ["gramian.batch=independent", "gramian.sampler=adaptive"],
    "few": ["gramian.kind=sampled", "gramian.batch=independent", "gramian.batch_size=6"],
    "auto": ["gramian.rate=auto", "gramian.decay=0.0"],
    "tower": ["model.kind=two_tower"],
    "tower, storm": ["model.kind=two_tower", "gramian.kind=storm", "gramian.rate=0.1"],
    "power": ["task.query_measure=0.3", "task.candidate_measure=0.2"],
    "two measures": [
        "task.penalty=[4, 1]",
        "task.query_measure=[0, 1]",
        "task.candidate_measure=[0, 0.5]",
    ],
    "exclude": ["task.sparse=exclude"],
    "constant": ["prior.kind=constant", "prior.value=-0.05"],
    "svd": ["prior.kind=svd", "prior.rank=4"],
    "logistic": ["task.loss=logistic", "task.penalty=1"],
    "absolute": ["task.loss=absolute", "task.penalty=1"],
    "huber": ["task.loss=huber"],
    "hinge": ["task.loss=hinge", "task.penalty=1"],
    "squared hinge": ["task.loss=squared_hinge"],
    "bpr": ["task.kind=bpr", "task.penalty=0"],
    "bpr, penalty": ["task.kind=bpr", "task.penalty=1"],
    "softmax": ["task.kind=softmax", "task.penalty=0"],
    "softmax, penalty": ["task.kind=softmax", "task.penalty=1"],
    "second": ["task.kind=second_order", "task.penalty=0", "task.query_measure=1", "task.l2=0.1"],
    "rg2": [
        "task.kind=second_order",
        "task.penalty=0",
        "task.query_measure=1",
        "task.centred=false",
    ],
    "clustered": ["task.kind=softmax_clustered", "task.clusters=16", "task.l2=0.1"],
    "taylor": ["task.kind=spherical", "task.penalty=0", "task.query_measure=1", "task.l2=0.1"],
    "square": [
        "task.kind=spherical",
        "task.form=square",
        "task.temperature=0.3",
        "task.penalty=0",
        "task.query_measure=1",
        "task.l2=0.02",
    ],
    "unit": [
        "model.normalize=true",
        "task.kind=softmax",
        "task.temperature=0.2",
        "task.penalty=0",
        "task.candidate_orthogonal=0.5",
        "task.l2=0",
    ],
}


@pytest.mark.long
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_learns_more_than_popularity(small: Recipe, setting: str) -> None:
    recipe = Recipe.of(small.model_dump(), ["training.epochs=8", *SETTINGS[setting]])
    trained = run(recipe)
    assert trained.metrics["model"]["recall@20"] > 1.2 * trained.metrics["popularity"]["recall@20"]


@pytest.mark.long
def test_the_same_seed_gives_the_same_bits(small: Recipe) -> None:
    one, two = run(small), run(small)
    assert torch.equal(one.query, two.query)
    assert torch.equal(one.candidate, two.candidate)
    assert one.metrics == two.metrics
    other = run(Recipe.of(small.model_dump(), ["seed=1"]))
    assert other.query.shape != one.query.shape or not torch.equal(other.query, one.query)


@pytest.mark.long
def test_the_best_epoch_is_kept(small: Recipe) -> None:
    trained = run(Recipe.of(small.model_dump(), ["training.epochs=6"]))
    best = max(trained.history, key=lambda h: h["recall@20"])
    assert trained.best_epoch == best["epoch"]
    again = run(Recipe.of(small.model_dump(), [f"training.epochs={trained.best_epoch}"]))
    assert torch.equal(again.query, trained.query)


def test_a_budget_ends_training(small: Recipe) -> None:
    trained = run(Recipe.of(small.model_dump(), ["training.epochs=500", "training.budget=0.05"]))
    assert 0 < len(trained.history) < 500


def test_a_loss_that_explodes_is_a_sentence(small: Recipe) -> None:
    bad = Recipe.of(
        small.model_dump(), ["training.table_rate=1e30", "training.epochs=3", "task.penalty=1e9"]
    )
    with pytest.raises(TrainingError, match=r"lower training\.table_rate"):
        run(bad)


def outcome(recipe: Recipe, *overrides: str) -> tuple[int, int, str, list[str]]:
    """Train. Returns: the best epoch, the last one, what ended it, and the warnings."""
    recipe = Recipe.of(recipe.model_dump(), overrides)
    split = split_for(recipe, load_corpus(recipe), 0)
    trained = fit_encoder(recipe, split, 0, RunContext(CPU, title="version 0"))
    last = int(trained.history[-1]["epoch"])
    return trained.best_epoch, last, trained.ended, trained.warnings


@pytest.mark.long
def test_epochs_are_a_maximum(small: Recipe, caplog: pytest.LogCaptureFixture) -> None:
    best, last, ended, warnings = outcome(small, "training.epochs=60", "training.patience=2")
    assert (last, ended, warnings) == (best + 2, "patience", [])
    best, last, ended, warnings = outcome(
        small, "training.epochs=60", "training.patience=2", "training.evaluate_every=3"
    )
    assert (last, ended) == (best + 6, "patience")
    assert caplog.text == ""


@pytest.mark.parametrize("refit", ["true"])
def test_nothing_of_a_run_waits_for_the_collector_to_be_freed(small: Recipe, refit: str) -> None:
    """A run is as large as what is published of it, and would stay beside it."""
    recipe = Recipe.of(small.model_dump(), ["training.epochs=2", f"training.refit={refit}"])
    split = split_for(recipe, load_corpus(recipe), 0)
    again = Refit(final_split(split, refits=True)) if refit == "true" else None
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
