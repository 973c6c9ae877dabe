"""A run's state is all that the rest of the run depends on, and is read as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from torch import Tensor, nn

from evergram.data.sampling import Batch
from evergram.errors import FormatError, IntegrityError, TrainingError
from evergram.training.build import prepare
from evergram.training.callbacks import Callback, Point
from evergram.training.checkpoints.run_state import gather, named, scatter, seeded
from evergram.training.checkpoints.state_file import StateReader, StateWriter, TrainingState
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
    for place, state in [*enumerate(copies.states)][::3]:
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


@settings(max_examples=10, deadline=None)
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


IDENTITY = {"recipe": '{"seed": 1}', "torch": "2"}


READER, WRITER = StateReader(), StateWriter()


def state_of(**tensors: Tensor) -> TrainingState:
    return TrainingState(tensors, {"epoch": 3, "seconds": 0.1 + 0.2, "history": [{"a": 1e-300}]})


def test_tensors_of_every_type_and_facts_come_back(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    written = state_of(
        a=torch.randn(3, 4).T,
        empty=torch.zeros(0, 3),
        scalar=torch.tensor(2.5, dtype=torch.float64),
        flag=torch.tensor(True),
        half=torch.randn(3).bfloat16(),
        generator=torch.get_rng_state(),
        nan=torch.tensor([float("nan"), float("inf")]),
        shared=shared,
        part=shared[2:],
        again=shared,
    )
    path = tmp_path / "made" / "state.safetensors"
    WRITER.write(path, IDENTITY, written)
    assert READER.identity(path) == IDENTITY
    state = READER.read(path)
    assert state.facts == written.facts
    assert state.tensors.keys() == written.tensors.keys()
    for name, value in written.tensors.items():
        assert state.tensors[name].dtype == value.dtype
        torch.testing.assert_close(state.tensors[name], value, rtol=0, atol=0, equal_nan=True)
    assert state.bytes == written.bytes


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_damaged_byte_and_no_cut_goes_unseen(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("state") / "s.safetensors"
    WRITER.write(path, IDENTITY, state_of(a=torch.arange(20.0), b=torch.arange(5)))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises((IntegrityError, FormatError)):
        READER.read(path)


def test_a_state_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "work" / "run.safetensors"
    WRITER.write(path, IDENTITY, state_of(a=torch.ones(3)))

    def full(_: object, path: Path, **__: object) -> None:
        Path(path).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("evergram.training.checkpoints.state_file.save_file", full)
    with pytest.raises(TrainingError, match=r"20 bytes, cannot be kept in .*: I/O error: No space"):
        WRITER.write(path, IDENTITY, state_of(a=torch.ones(5)))
    assert [p.name for p in path.parent.iterdir()] == ["run.safetensors"]
    assert torch.equal(READER.read(path).tensors["a"], torch.ones(3))
