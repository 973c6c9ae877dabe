"""A state is read as it was written, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from evergram.errors import FormatError, IntegrityError, TrainingError
from evergram.training.checkpoints.state_file import StateReader, StateWriter, TrainingState

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


def test_a_file_of_another_release_or_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    save_file({"a": torch.ones(1)}, path, metadata={"key": "k", "facts": "{}"})
    with pytest.raises(FormatError, match=r"s\.safetensors was written by another release"):
        READER.identity(path)
    with pytest.raises(IntegrityError, match="is damaged"):
        READER.identity(tmp_path / "absent")


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
