"""A run's state, taken between any two steps, is all that the rest of the run depends on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evergram.data.sampling import Batch
from evergram.training.build import prepare
from evergram.training.callbacks import Callback, Point
from evergram.training.checkpoints.run_state import gather, named, scatter, seeded
from evergram.training.checkpoints.state_file import TrainingState
from evergram.training.corpora import load_corpus, split_for
from evergram.training.loop import Trainer
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")


class Copies(Callback):
    """Keeps a copy of the state after each step, and the objectives."""

    def __init__(self) -> None:
        self.states: list[TrainingState] = []
        self.objectives: list[float] = []

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        self.objectives.append(float(objective))

    def on_step_end(self, run: Trainer) -> None:
        state = run.state()
        self.states.append(
            TrainingState({k: v.clone() for k, v in state.tensors.items()}, state.facts)
        )

    def state_dict(self) -> dict[str, Any]:
        return {"objectives": list(self.objectives), "last": torch.tensor(self.objectives[-1])}

    def load_state_dict(self, state: Any) -> None:
        assert float(state["last"]) == pytest.approx(state["objectives"][-1])
        self.objectives = list(state["objectives"])


def run_of(recipe: Recipe, callback: Callback) -> Trainer:
    corpus = split_for(recipe, load_corpus(recipe), 0).training
    settings = FitSettings.of(recipe, corpus, 0)
    return Trainer(
        *prepare(settings, corpus, CPU), callbacks=[callback], seed=settings.version_seed
    )


@pytest.mark.parametrize(
    "overrides",
    [
        "gramian.kind=storm gramian.rate=auto",
        "gramian.kind=storm gramian.batch=independent",
        "gramian.kind=sampled gramian.batch=independent gramian.sampler=adaptive",
        "task.kind=bpr task.penalty=1",
    ],
)
def test_a_run_goes_on_from_after_any_step(small: Recipe, overrides: str) -> None:
    recipe = Recipe.of(small.model_dump(), ["training.batch_size=900", *overrides.split()])
    copies = Copies()
    whole = run_of(recipe, copies)
    whole.fit(epochs=2)
    assert len(copies.states) == whole.steps == 2 * len(whole.sampler)
    for place, state in enumerate(copies.states):
        torch.rand(place)
        again = Copies()
        run = run_of(recipe, again)
        run.load_state(state)
        assert run.steps == place + 1
        assert run.fit(epochs=2) == "epochs"
        assert again.objectives == copies.objectives
        end, same = whole.state(), run.state()
        assert end.tensors.keys() == same.tensors.keys()
        assert all(torch.equal(end.tensors[k], same.tensors[k]) for k in end.tensors)


@pytest.mark.parametrize(
    ("overrides", "piece"),
    [
        ("gramian.kind=storm", "look_ahead|query"),
        ("gramian.kind=storm", "query0|matrix"),
        ("gramian.kind=sagram", "candidate0|cache"),
        ("gramian.kind=sogram", "query0|missing"),
        ("gramian.kind=sogram", "optimizer0|0|sum"),
        ("gramian.kind=sogram", "epoch|objective"),
        ("task.kind=bpr task.penalty=1", "batches"),
    ],
)
def test_a_run_that_loses_a_piece_of_its_state_ends_elsewhere(
    small: Recipe, overrides: str, piece: str
) -> None:
    """So the comparison of the test before sees what it is there to see."""
    recipe = Recipe.of(small.model_dump(), ["training.batch_size=900", *overrides.split()])
    copies, ends = Copies(), Ends()
    whole = run_of(recipe, copies)
    whole.callbacks.append(ends)
    whole.fit(epochs=2)
    state = copies.states[1]
    tensors, facts = dict(state.tensors), dict(state.facts)
    if piece in facts:
        facts[piece] -= 1
    else:
        tensors[piece] = tensors[piece] * 0.5
    run, again = run_of(recipe, Copies()), Ends()
    run.callbacks.append(again)
    run.load_state(TrainingState(tensors, facts))
    run.fit(epochs=2)
    assert (again.objectives, _bytes(run)) != (ends.objectives, _bytes(whole))


class Ends(Callback):
    """Keeps the objective of each epoch."""

    def __init__(self) -> None:
        self.objectives: list[float] = []

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        self.objectives.append(objective)


def _bytes(run: Trainer) -> list[bytes]:
    return [value.numpy().tobytes() for value in run.parameters().values()]


def test_what_is_restored_shares_no_memory_with_the_state() -> None:
    layer = nn.Linear(2, 2)
    adam = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    adam.step()
    kept = {k: v.clone() for k, v in gather({"layer": layer}, [adam]).items()}
    frozen = {k: v.clone() for k, v in kept.items()}
    scatter(kept, {"layer": layer}, [adam])
    adam.step()
    assert all(torch.equal(kept[k], frozen[k]) for k in kept)
    assert named(kept, "layer").keys() == {"weight", "bias"}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 40))
def test_a_generator_goes_on_where_it_was(seed: int, drawn: int) -> None:
    before = torch.get_rng_state()
    with seeded(seed, CPU, {}):
        torch.rand(drawn)
        state = torch.get_rng_state()
        rest = torch.randn(5)
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(seed + 1, CPU, {"cpu": state}):
        assert torch.equal(torch.randn(5), rest)
    assert torch.equal(torch.get_rng_state(), before)
