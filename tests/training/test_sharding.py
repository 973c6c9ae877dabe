"""Divided tables: their rows, their steps, their checkpoints, and what cannot be divided."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tests.support.fits import CPU, assert_same, killed_and_resumed, parts_of
from tests.support.shared_training import BASE, DIVIDED, joint_of, shared_corpus, whole_tables
from tests.support.thread_processes import Threads, in_threads
from tests.support.tiny_training import tiny_recipe
from torch import Tensor, nn

import evergram
from evergram import PretrainedEncoder
from evergram.collectives import ALONE, Collectives
from evergram.encoders.features import SIDES, Schema
from evergram.errors import RecipeError, TrainingError
from evergram.lineage.artefact import Artefact
from evergram.training import memory, sharding
from evergram.training.build import Companions, prepare
from evergram.training.loop import gather, run_epoch, scatter
from evergram.training.memory import needed_bytes, place_tables
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.resuming import CheckpointSettings
from evergram.training.sharding import ShardedFactorization, draw_shard, mapped_rows, shard_of
from evergram.training.step import Step

CORPUS = shared_corpus()
SCHEMA = Schema.of(CORPUS, features=False)


@given(size=st.integers(1, 200), processes=st.integers(1, 9))
def test_parts_are_those_of_torch_chunk(size: int, processes: int) -> None:
    chunks = list(torch.arange(size).chunk(processes))
    chunks += [torch.arange(0)] * (processes - len(chunks))
    for rank, chunk in enumerate(chunks):
        assert torch.arange(size)[shard_of(size, rank, processes)].equal(chunk)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 130), dim=st.integers(1, 9), processes=st.integers(1, 4), seed=st.integers()
)
def test_rows_are_those_of_one_table(size: int, dim: int, processes: int, seed: int) -> None:
    def draws() -> torch.Generator:
        return torch.Generator().manual_seed(seed % 2**31)

    whole = nn.init.normal_(torch.empty(size, dim), std=0.3, generator=draws())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "BLOCK", 16)
        parts = [
            draw_shard((size, dim), 0.3, draws(), shard_of(size, rank, processes))
            for rank in range(processes)
        ]
    assert torch.cat(parts).equal(whole)


def trained(*overrides: str) -> Step:
    step, sampler, draws = parts_of(tiny_recipe("training.batch_size=25", *overrides), CORPUS)
    for _ in run_epoch(step, sampler, draws, 0, CPU):
        pass
    return step


def test_one_process_trains_what_a_factorization_is_and_its_states_have_no_rows() -> None:
    whole, parts = trained(), trained(*DIVIDED)
    encoder = parts.encoder
    assert isinstance(encoder, ShardedFactorization)
    vectors = whole.encoder.eval().embed_all(CORPUS)
    for side, rows in encoder.eval().embed_all(CORPUS).items():
        assert rows.equal(vectors[side])
    before = whole_tables(encoder)
    expected = gather({"encoder": whole.encoder}, whole.optimizers)
    assert before.keys() == expected.keys()
    assert all(before[name].equal(value) for name, value in expected.items())
    state = gather({"encoder": encoder}, parts.optimizers)
    assert not state
    scatter(state, {"encoder": encoder}, parts.optimizers)
    after = whole_tables(encoder)
    assert all(after[name].equal(value) for name, value in before.items())


def test_all_processes_read_whole_tables_together(tmp_path: Path) -> None:
    """The first has them, mapped; rows that two have written are read by three."""

    def encoder_of(process: Collectives) -> ShardedFactorization:
        draws = torch.Generator().manual_seed(process.size * (process.size > 1))
        return ShardedFactorization(SCHEMA, {"dim": 4}, draws, process)

    def written(process: Threads) -> dict[str, Tensor]:
        encoder = encoder_of(process)
        encoder.keep()
        encoder.save(tmp_path)
        return encoder.gathered(best=True).embed_all(CORPUS)

    def read(process: Threads) -> dict[str, Tensor]:
        encoder = encoder_of(process)
        encoder.load(tmp_path)
        return encoder.embed_all(CORPUS)

    (first, second), _ = in_threads(2, written)
    others, _ = in_threads(3, read)
    for side, rows in first.items():
        assert second[side].is_meta
        assert second[side].shape == rows.shape
        assert others[0][side].equal(rows)
        assert all(other[side].is_meta for other in others[1:])
    assert encoder_of(ALONE).embed_all(CORPUS)["query"].ne(first["query"]).all()


@pytest.mark.parametrize("setting", ["training.refit=true", "model.normalize=true"])
def test_one_process_publishes_what_a_factorization_is(tmp_path: Path, setting: str) -> None:
    blocks = []
    for tables in ("training.tables=memory", *DIVIDED):
        recipe = tiny_recipe("training.epochs=2", setting, tables)
        lineage = evergram.Lineage.create(tmp_path / tables, "x")
        evergram.publish(lineage, evergram.train(recipe, progress=False))
        blocks.append({side: lineage.embeddings(side) for side in SIDES})
        assert PretrainedEncoder.of_version(lineage, 0).kind == "factorization"
    for side in SIDES:
        (ids, vectors), (other_ids, others) = (each[side] for each in blocks)
        assert ids.equals(other_ids)
        assert torch.equal(vectors, others)


def test_a_killed_run_goes_on_from_rows_that_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = tiny_recipe("training.epochs=4", *DIVIDED)

    def run(**kept: Any) -> Artefact:
        return evergram.train(recipe, progress=False, **kept)

    def damage() -> None:
        newest = max(path for path in tmp_path.iterdir() if path.is_dir())
        names = set()
        for path in newest.iterdir():
            with safe_open(path, framework="pt") as file:
                names |= set(file.keys())
        assert names == {f"{side}.{part}" for side in SIDES for part in ("weight", "best", "sum")}
        # What a process left that was killed before it wrote the file beside the rows.
        shutil.copytree(newest, tmp_path / f"lone.{newest.name}")
        rows = next(newest.iterdir())
        rows.write_bytes(rows.read_bytes()[:-1] + b"\1")
        for name in ("load", "loads", "Unpickler"):
            monkeypatch.setattr(pickle, name, None)

    often = CheckpointSettings(every=1, keep=2)
    again, begun = killed_and_resumed(monkeypatch, run, (2, 3), tmp_path, often, damage)
    assert ".rows is damaged" in caplog.text
    assert begun == [(2, 2), (3, 0)]
    assert_same(again, run())
    assert not [*tmp_path.glob("lone.*")]
    # Without its rows, and of a training whose tables are whole.
    for folder in tmp_path.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    del begun[:]
    run(folder=tmp_path, checkpoints=often)
    assert begun == [(n, 0) for n in range(4)]


def test_rows_that_cannot_be_written_or_are_not_there_are_named(tmp_path: Path) -> None:
    encoder = ShardedFactorization(SCHEMA, {"dim": 4}, torch.Generator(), ALONE)
    with pytest.raises(TrainingError, match=r"cannot be read in .*rows .*query.weight"):
        encoder.load(tmp_path / "rows")
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match=r"cannot be kept in .*file"):
        encoder.save(tmp_path / "file")


def settings_of(*overrides: str, version: int = 0) -> FitSettings:
    values = {"data": {"kind": "synthetic"}, "model": {"dim": 4}, "training": {"batch_size": 25}}
    return FitSettings.of(Recipe.of(values, [*BASE, *DIVIDED, *overrides]), CORPUS, version)


def test_what_needs_all_rows_in_a_process_or_a_version_before_is_refused() -> None:
    for overrides, named in (
        ("model.kind=two_tower", "model.kind = 'factorization'"),
        ("gramian.kind=sagram", "gramian.kind"),
        ("gramian.kind=exact", "gramian.kind"),
        ("model.start=svd", "model.start"),
        ("model.hash_rows=7", "model.hash_rows"),
        ("model.normalize=true task.l2=0 model.popularity=auto", "model.popularity"),
        ("training.optimizer=adam", "training.optimizer"),
        ("task.kind=softmax_all", "task.kind"),
    ):
        with pytest.raises(RecipeError, match=r"training\.tables is 'sharded', which .*" + named):
            settings_of(*overrides.split())
    beside = Companions(joint_of("joint, all", CORPUS))
    for chosen, companions in ((settings_of(version=1), Companions()), (settings_of(), beside)):
        with pytest.raises(RecipeError, match=r"'sharded', which needs version 0 of a lineage"):
            prepare(chosen, CORPUS, torch.device("cpu"), companions)
    # 17 candidates: ⌈17/6⌉ = 3 rows each leave none for the sixth.
    place_tables(settings_of(), SCHEMA, CPU, None, 5)
    with pytest.raises(RecipeError, match="17 rows of side candidate cannot be divided among 7"):
        place_tables(settings_of(), SCHEMA, CPU, None, 7)


def test_memory_is_that_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = needed_bytes(settings_of().model, SCHEMA, 0)
    monkeypatch.setattr(memory, "machine_memory", lambda: needed // 2)
    place_tables(settings_of(), SCHEMA, CPU, None, 2)
    with pytest.raises(RecipeError, match=f"{needed:,} bytes"):
        place_tables(settings_of(), SCHEMA, CPU, None, 1)


def pieces(rows: Tensor) -> Iterator[Tensor]:
    return iter(torch.split(rows, 4))


def test_rows_are_mapped_from_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.randn(10, 3)
    mapped = mapped_rows(pieces(rows), (10, 3), tmp_path)
    assert mapped.equal(rows)
    assert mapped.untyped_storage().filename is not None

    def full(*arguments: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TrainingError, match=r"120 bytes, .*No space left"):
        mapped_rows(pieces(rows), (10, 3), tmp_path)
    assert not list(tmp_path.iterdir())
