"""Checkpoints of divided tables: whole or passed over, and read by any number of processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.several_processes import ended, start
from tests.support.shared_training import CPU, shared_corpus
from tests.support.tiny_training import tiny_recipe

from evergram.errors import FormatError, IntegrityError
from evergram.training.build import prepare
from evergram.training.checkpoints.checkpoint_folder import CheckpointFolder
from evergram.training.checkpoints.state_file import StateWriter, TrainingState
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.sharding.shard_files import shard_folder
from evergram.training.sharding.sharded_factorization import ShardedFactorization
from evergram.training.sharding.sharded_state import (
    ShardedStateReader,
    ShardedStateWriter,
    keep_shards,
)

DIVIDED = "training.tables=sharded"
IDENTITY = {"recipe": "x"}


def divided() -> ShardedFactorization:
    settings = FitSettings.of(tiny_recipe(DIVIDED), shared_corpus(), 0)
    encoder = prepare(settings, shared_corpus(), CPU)[0].encoder
    assert isinstance(encoder, ShardedFactorization)
    return encoder


def saved(path: Path) -> ShardedFactorization:
    encoder = divided()
    with torch.no_grad():
        encoder.query.weight += 1.0
    state = TrainingState({"x": torch.ones(2)}, {"steps": 3})
    ShardedStateWriter(encoder).write(path, IDENTITY, state)
    return encoder


def test_rows_go_into_the_encoder_and_all_else_is_returned(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    encoder, other = saved(path), divided()
    reader = ShardedStateReader(other)
    assert reader.identity(path) == IDENTITY
    state = reader.read(path)
    assert state.facts["steps"] == 3
    assert state.tensors["x"].tolist() == [1, 1]
    assert other.query.weight.equal(encoder.query.weight)
    ShardedStateWriter(other).remove(path)
    assert not list(tmp_path.iterdir())


def test_damaged_rows_leave_the_encoder_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    saved(path)
    rows = next(shard_folder(path).iterdir())
    rows.write_bytes(rows.read_bytes()[:-1] + b"\1")
    other = divided()
    before = other.query.weight.detach().clone()
    with pytest.raises(IntegrityError, match="its files are not those that run"):
        ShardedStateReader(other).read(path)
    shutil.rmtree(shard_folder(path))
    with pytest.raises(IntegrityError, match="is damaged"):
        ShardedStateReader(other).read(path)
    assert other.query.weight.equal(before)


def test_a_checkpoint_of_whole_tables_is_none(tmp_path: Path) -> None:
    StateWriter().write(tmp_path / "x.safetensors", IDENTITY, TrainingState({}, {}))
    with pytest.raises(FormatError, match="has no rows of divided tables"):
        ShardedStateReader(divided()).read(tmp_path / "x.safetensors")


def test_other_encoders_keep_their_writer(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "run")
    settings = FitSettings.of(tiny_recipe(), shared_corpus(), 0)
    keep_shards(folder, prepare(settings, shared_corpus(), CPU)[0].encoder)
    assert type(folder.writer) is StateWriter
    keep_shards(folder, divided())
    assert isinstance(folder.writer, ShardedStateWriter)
    assert isinstance(folder.reader, ShardedStateReader)


def resumed(count: int, folder: Path, fatal: int, *settings: str) -> list[tuple[int, str]]:
    arguments = str(folder), str(folder / "out.safetensors"), str(fatal), "sogram", *settings
    return ended(start(count, "-m", "tests.support.resumed_training", *arguments))


@pytest.mark.long
def test_a_training_that_loses_a_process_resumes_in_another_number(tmp_path: Path) -> None:
    assert resumed(1, tmp_path / "alone", 0)[0][0] == 0
    for code, output in resumed(2, tmp_path / "whole", 0, DIVIDED):
        assert code == 0, output
    survivor, killed = resumed(2, tmp_path / "killed", 20, DIVIDED)
    assert killed[0] == -9
    assert survivor[0] == 2
    assert "another process of this command has ended or did not answer" in survivor[1]
    folders = [p for p in (tmp_path / "killed").iterdir() if p.is_dir()]
    assert folders
    for folder in folders:
        owners = {path.name.split("-model")[0] for path in folder.iterdir()}
        assert owners == {"shard-00001", "shard-00002"}
    alone, whole = (load_file(tmp_path / n / "out.safetensors") for n in ("alone", "whole"))
    for count in (1, 2, 3):
        folder = shutil.copytree(tmp_path / "killed", tmp_path / f"by{count}")
        for code, output in resumed(count, folder, 0, DIVIDED):
            assert code == 0, output
            assert "steps" not in output or int(output.split()[0]) < 20
        vectors = load_file(folder / "out.safetensors")
        for side, value in alone.items():
            torch.testing.assert_close(vectors[side], value, rtol=1e-5, atol=1e-5)
            # By as many processes as an undisturbed run, bit for bit.
            assert count != 2 or vectors[side].equal(whole[side])
