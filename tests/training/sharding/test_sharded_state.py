"""Files and checkpoints of divided tables, and what cannot be divided."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tests.support.several_processes import ended, start
from tests.support.shared_training import BASE, CPU, joint_of, shared_corpus
from tests.support.tiny_training import tiny_recipe

from evergram.collectives import ALONE, Collectives
from evergram.errors import FormatError, IntegrityError, RecipeError, TrainingError
from evergram.training.build import Companions, prepare
from evergram.training.checkpoints.state_file import StateWriter, TrainingState
from evergram.training.memory import needed_bytes
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.sharding import sharding_limits
from evergram.training.sharding.shard_files import (
    load_shards,
    remove_folder_of_rows,
    remove_lone_shards,
    save_shards,
    shard_folder,
)
from evergram.training.sharding.sharded_factorization import ShardedFactorization
from evergram.training.sharding.sharded_state import (
    ShardedStateReader,
    ShardedStateWriter,
)
from evergram.training.sharding.sharding_limits import refuse_unshardable

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


def written_rows(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {"query.weight": torch.randn(5, 3), "query.sum": torch.rand(5)}
    save_shards(tensors, folder, ALONE)
    return tensors


def test_they_are_read_as_they_were_without_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = written_rows(tmp_path / "rows")
    names = set()
    for path in (tmp_path / "rows").iterdir():
        with safe_open(path, framework="pt") as file:
            names |= set(file.keys())
    assert names == set(tensors)
    assert len(list((tmp_path / "rows").iterdir())) == len(tensors)

    def refused(*arguments: object) -> None:
        raise AssertionError("a pickle is read")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refused)
    read = {name: torch.zeros_like(value) for name, value in tensors.items()}
    load_shards(read, tmp_path / "rows", ALONE)
    assert all(read[name].equal(value) for name, value in tensors.items())


def test_what_is_not_there_is_an_error_of_ours(tmp_path: Path) -> None:
    written_rows(tmp_path / "rows")
    with pytest.raises(TrainingError, match=r"cannot be read in .*rows .*other.weight"):
        load_shards({"other.weight": torch.zeros(5, 3)}, tmp_path / "rows", ALONE)
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="cannot be written in"):
        save_shards({"x": torch.zeros(2)}, tmp_path / "file", ALONE)


def test_rows_without_their_checkpoint_are_removed(tmp_path: Path) -> None:
    one, other = tmp_path / "a.000000000001.safetensors", tmp_path / "a.000000000002.safetensors"
    for path in (one, other):
        path.touch()
        written_rows(shard_folder(path))
    one.unlink()
    remove_lone_shards(tmp_path)
    assert sorted(tmp_path.iterdir()) == [other, shard_folder(other)]
    remove_folder_of_rows(other)
    assert not shard_folder(other).exists()


CORPUS = shared_corpus()


NONE = Companions()


def settings(*overrides: str, version: int = 0) -> FitSettings:
    values = {"data": {"kind": "synthetic"}, "model": {"dim": 4}, "training": {"batch_size": 25}}
    recipe = Recipe.of(values, [*BASE, "training.tables=sharded", *overrides])
    return FitSettings.of(recipe, CORPUS, version)


def processes(count: int) -> Collectives:
    collectives = Collectives()
    collectives.size = count
    return collectives


def test_what_needs_all_rows_in_a_process_or_a_version_before_is_refused() -> None:
    for overrides, named in (
        ("model.kind=two_tower", "'two_tower'"),
        ("gramian.kind=sagram", "'sagram'"),
        ("gramian.kind=exact", "'exact'"),
        ("model.start=svd", "'svd'"),
        ("model.hash_rows=7", "model.hash_rows"),
        ("model.normalize=true task.l2=0 model.popularity=auto", "model.popularity"),
        ("training.watch_minutes=1.0", "training.watch_minutes"),
    ):
        with pytest.raises(RecipeError) as refused:
            prepare(settings(*overrides.split()), CORPUS, torch.device("cpu"))
        assert named in str(refused.value)
    with pytest.raises(RecipeError, match="this is version 1"):
        refuse_unshardable(settings(version=1), CORPUS, NONE, ALONE)
    beside = Companions(joint_of("joint, all", CORPUS))
    with pytest.raises(RecipeError, match="trains version 0 of"):
        refuse_unshardable(settings(), CORPUS, beside, ALONE)


def test_more_processes_than_rows_fill() -> None:
    # 17 candidates: ⌈17/6⌉ = 3 rows each leave none for the sixth.
    refuse_unshardable(settings(), CORPUS, NONE, processes(5))
    with pytest.raises(RecipeError, match="17 candidates cannot be divided among 7 processes"):
        refuse_unshardable(settings(), CORPUS, NONE, processes(7))


def test_memory_is_that_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = needed_bytes(settings().model, CORPUS, 0)
    monkeypatch.setattr(sharding_limits, "memory_bytes", lambda: needed // 2)
    refuse_unshardable(settings(), CORPUS, NONE, processes(2))
    with pytest.raises(RecipeError, match=f"Each of 1 processes needs at least {needed:,} bytes"):
        refuse_unshardable(settings(), CORPUS, NONE, ALONE)
