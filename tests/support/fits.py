"""The parts of a training that tests make from a recipe, and what two trainings have alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from reproduction.recipe import PaperRecipe
from tests.support.tiny_training import recipe_class
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch, EntitySampler, ExampleSampler, SweepSampler
from evergram.data.split import Split
from evergram.lineage.artefact import Artefact
from evergram.training.build import Companions, FitSettings, load_corpus, prepare, split_for
from evergram.training.callbacks import Callback
from evergram.training.fit import RunContext, Trained, fit_encoder
from evergram.training.loop import Trainer, run_epoch
from evergram.training.recipe import Recipe
from evergram.training.resuming import CheckpointSettings, TrainingState
from evergram.training.step import Step

CPU = torch.device("cpu")
T = TypeVar("T")


def changed(recipe: Recipe, *overrides: str) -> Recipe:
    kind = type(recipe) if isinstance(recipe, PaperRecipe) else recipe_class(overrides)
    return kind.stored(recipe.model_dump(), overrides)


def split_of(recipe: Recipe, version: int = 0) -> Split:
    return split_for(recipe, load_corpus(recipe), version)


def parts_of(
    recipe: Recipe, corpus: Corpus | None = None, version: int = 0, **companions: Any
) -> tuple[Step, ExampleSampler, dict[str, EntitySampler] | None]:
    """Return `prepare`'s parts of a run, of a recipe's training pairs if no corpus is given."""
    corpus = split_of(recipe, version).training if corpus is None else corpus
    settings = FitSettings.of(recipe, corpus, version)
    return prepare(settings, corpus, CPU, Companions(**companions))


def trainer_of(recipe: Recipe, *callbacks: Callback, corpus: Corpus | None = None) -> Trainer:
    return Trainer(*parts_of(recipe, corpus), callbacks=callbacks, seed=recipe.seed)


def epoch_gradients(step: Step, sampler: ExampleSampler) -> tuple[dict[str, Tensor], list[Batch]]:
    """Return the sum of an epoch's gradients, with parameters held, and its batches."""
    step.optimizers = []
    total = {name: torch.zeros_like(p) for name, p in step.encoder.named_parameters()}
    batches = []
    for batch, _ in run_epoch(step, sampler, None, 0, CPU):
        batches.append(batch)
        for name, parameter in step.encoder.named_parameters():
            assert parameter.grad is not None
            total[name] += parameter.grad.to_dense()
        step.encoder.zero_grad()
    return total, batches


def fitted(recipe: Recipe, callbacks: Sequence[Callback] = (), **context: Any) -> Trained:
    """Return version 0, trained on the CPU."""
    return fit_encoder(recipe, split_of(recipe), 0, RunContext(CPU, callbacks=callbacks, **context))


def untimed(report: Any, drop: Sequence[str] = ()) -> Any:
    """Return a report without its times, and without the entries named in `drop`."""
    if isinstance(report, dict):
        kept = (k for k in report if "second" not in str(k) and k not in drop)
        return {k: untimed(report[k], drop) for k in kept}
    return [untimed(v, drop) for v in report] if isinstance(report, (list, tuple)) else report


def assert_same(one: Artefact, other: Artefact) -> None:
    """Assert that two artefacts have the same vectors, model, metrics and history, bit by bit."""
    assert one.encoder is not None
    assert other.encoder is not None
    assert one.encoder.options == other.encoder.options
    assert one.encoder.state.keys() == other.encoder.state.keys()
    for name, value in one.encoder.state.items():
        assert torch.equal(value, other.encoder.state[name]), name
    for side in ("query", "candidate"):
        (ids, vectors), (their_ids, theirs) = one.block(side), other.block(side)
        assert ids.equals(their_ids)
        assert torch.equal(vectors, theirs)
    assert one.metrics["metrics"] == other.metrics["metrics"]
    histories = [untimed(each.metrics["training"]["history"]) for each in (one, other)]
    assert histories[0] == histories[1]


class Copies(Callback):
    """Keeps a copy of the state after each step, and the objectives."""

    def __init__(self) -> None:
        self.states: list[TrainingState] = []
        self.objectives: list[float] = []

    def on_step(self, run: Trainer, batch: Batch, objective: Tensor) -> None:
        self.objectives.append(float(objective))

    def on_step_end(self, run: Trainer) -> None:
        state = run.state()
        copied = {k: v.clone() for k, v in state.tensors.items()}
        self.states.append(TrainingState(copied, json.loads(json.dumps(state.facts))))

    def state_dict(self) -> dict[str, Any]:
        return {"objectives": list(self.objectives), "last": torch.tensor(self.objectives[-1])}

    def load_state_dict(self, state: Any) -> None:
        assert float(state["last"]) == pytest.approx(state["objectives"][-1])
        self.objectives = list(state["objectives"])


def watch_epochs(
    patch: pytest.MonkeyPatch, dies: Callable[[int, int], bool] = lambda epoch, batch: False
) -> list[tuple[int, int]]:
    """Return a list of the epochs that begin from now on, with their first batches; one in which
    `dies` says so is interrupted before that batch."""
    begun: list[tuple[int, int]] = []

    def dying(real: Any) -> Any:
        def epoch(self: ExampleSampler, which: int, start: int = 0) -> Any:
            begun.append((which, start))
            for i, batch in enumerate(real(self, which, start), start):
                if dies(which, i):
                    raise KeyboardInterrupt
                yield batch

        return epoch

    for kind in (ExampleSampler, SweepSampler):
        patch.setattr(kind, "epoch", dying(kind.epoch))
    return begun


def killed_and_resumed(
    patch: pytest.MonkeyPatch,
    run: Callable[..., T],
    at: tuple[int, int],
    folder: Path,
    checkpoints: CheckpointSettings,
    between: Callable[[], None] = lambda: None,
) -> tuple[T, list[tuple[int, int]]]:
    """Interrupt `run(folder=…, checkpoints=…)` before a batch of an epoch, and run it again.

    Returns: what it then returns, and the epochs that begin from then on, with their first batches.
    """
    with patch.context() as dying:
        watch_epochs(dying, lambda *now: now == at)
        with pytest.raises(KeyboardInterrupt):
            run(folder=folder, checkpoints=checkpoints)
    between()
    torch.rand(17)
    begun = watch_epochs(patch)
    return run(folder=folder, checkpoints=checkpoints), begun
