"""Divided tables: their parts, their encoder, and steps of several processes that equal one's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.support.several_processes import train_cases
from tests.support.sharded_training import CASES, states, whole_state
from tests.support.shared_training import CPU, shared_corpus
from tests.support.tiny_training import tiny_recipe
from torch import Tensor, nn

import evergram
from evergram.collectives import ALONE, Collectives
from evergram.encoders.factorization import Factorization
from evergram.encoders.features import SIDES, Schema
from evergram.errors import TrainingError
from evergram.training.build import prepare
from evergram.training.loop import run_epoch
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.sharding import sharded_table
from evergram.training.sharding.gathered_factorization import (
    GatheredFactorization,
    mapped_rows,
)
from evergram.training.sharding.sharded_factorization import ShardedFactorization
from evergram.training.sharding.sharded_table import ShardedTable, draw_shard, shard_of
from evergram.training.step import Step

# Batch weights are float32 whatever the rest is.
CLOSE = 1e-6


# Three processes share an epoch's last pair, so that two have none.
OF_THREE = ["sogram", "softmax", "pools, sampled gradient"]


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
        patch.setattr(sharded_table, "BLOCK", 16)
        parts = [
            draw_shard((size, dim), 0.3, draws(), shard_of(size, rank, processes))
            for rank in range(processes)
        ]
    assert torch.cat(parts).equal(whole)


def test_a_table_of_one_process_is_an_embedding() -> None:
    table = ShardedTable((7, 3), 0.1, torch.Generator().manual_seed(1), ALONE)
    ids = torch.tensor([6, 0, 6])
    rows = table(ids)
    rows.sum().backward()
    assert rows.detach().equal(table.weight[ids])
    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse
    assert table.rows_alike(ids).equal(rows)
    assert not table.state_dict()
    before = table.weight.detach().clone()
    table.load_state_dict({})
    assert table.weight.equal(before)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Train every case in two processes, and some in three; one set of processes each."""
    folder = tmp_path_factory.mktemp("results")
    return train_cases("tests.support.sharded_training", {2: CASES, 3: OF_THREE}, folder)


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "case"), [*((2, case) for case in CASES), *((3, case) for case in OF_THREE)]
)
def test_processes_with_a_part_each_take_the_steps_of_one(
    results: dict[int, Path], count: int, case: str
) -> None:
    together = load_file(results[count] / f"{case.replace('/', ' of ')}.safetensors")
    alone = states(case, ALONE, [])
    assert together.keys() == alone.keys()
    assert len({name.split("|")[0] for name in alone}) == 20
    for name, value in alone.items():
        assert torch.allclose(together[name], value, rtol=CLOSE, atol=CLOSE), name
    # The comparison would notice a process that took no part.
    assert float((alone["0|query.weight"] - alone["19|query.weight"]).abs().max()) > 1e-3


CORPUS = shared_corpus()


DIVIDED = "training.tables=sharded"


def trained(*overrides: str) -> Step:
    recipe = tiny_recipe("training.batch_size=25", *overrides)
    step, sampler, draws = prepare(FitSettings.of(recipe, CORPUS, 0), CORPUS, CPU)
    for _ in run_epoch(step, sampler, draws, 0, CPU):
        pass
    return step


def divided() -> ShardedFactorization:
    encoder = trained(DIVIDED).encoder
    assert isinstance(encoder, ShardedFactorization)
    return encoder


def test_one_process_trains_what_a_factorization_is() -> None:
    whole, parts = trained(), trained(DIVIDED)
    assert isinstance(parts.encoder, ShardedFactorization)
    vectors = whole.encoder.eval().embed_all(CORPUS)
    for side, rows in parts.encoder.eval().embed_all(CORPUS).items():
        assert rows.equal(vectors[side])
    state = whole_state(parts.encoder)
    for side in SIDES:
        weight = getattr(whole.encoder, side).weight
        assert state[f"{side}.weight"].equal(weight)
        assert state[f"{side}.sum"].equal(whole.optimizers[0].state[weight]["sum"])


def test_its_states_and_its_optimisers_have_no_rows() -> None:
    step = trained(DIVIDED)
    assert isinstance(step.encoder, ShardedFactorization)
    assert not step.encoder.state_dict()
    before = whole_state(step.encoder)
    for optimizer in step.optimizers:
        assert not optimizer.state_dict()["state"]
        optimizer.load_state_dict(optimizer.state_dict())
    after = whole_state(step.encoder)
    assert before.keys() == after.keys()
    assert all(after[name].equal(value) for name, value in before.items())


def test_saved_rows_are_read_with_their_best_epoch(tmp_path: Path) -> None:
    encoder = divided()
    encoder.keep()
    with torch.no_grad():
        encoder.query.weight += 1.0
    before = whole_state(encoder)
    names = encoder.save(tmp_path)
    assert {"query.weight", "query.best", "query.sum"} <= set(names)
    other = divided()
    other.load(tmp_path, names)
    after = whole_state(other)
    assert after.keys() == before.keys() == set(names)
    assert all(after[name].equal(value) for name, value in before.items())


class Second(Collectives):
    """One of two processes, which nobody waits for."""

    rank, size = 1, 2


def test_embeddings_are_read_while_others_wait() -> None:
    schema = Schema.of(CORPUS, features=False)
    encoder = ShardedFactorization(schema, {"dim": 4}, torch.Generator(), Second())
    sizes = len(CORPUS.queries), len(CORPUS.candidates)
    assert [len(table.weight) for table in encoder.tables.values()] == [n // 2 for n in sizes]
    with pytest.raises(TrainingError, match="read in the first one, while the others wait"):
        encoder.embed_all(CORPUS)


@pytest.mark.parametrize("setting", ["training.refit=true", "model.normalize=true"])
def test_one_process_publishes_what_a_factorization_is(tmp_path: Path, setting: str) -> None:
    blocks = []
    for tables in ("training.tables=memory", DIVIDED):
        recipe = tiny_recipe("training.epochs=2", setting, tables)
        artefact = evergram.train(recipe, progress=False)
        lineage = evergram.Lineage.create(tmp_path / tables, "x")
        evergram.publish(lineage, artefact)
        blocks.append({side: lineage.embeddings(side) for side in SIDES})
        assert lineage.encoder(0).kind == "factorization"
    for side in SIDES:
        (ids, vectors), (other_ids, others) = (each[side] for each in blocks)
        assert ids.equals(other_ids)
        assert torch.equal(vectors, others)


SCHEMA = Schema.of(CORPUS, features=False)


def pieces(rows: Tensor) -> Iterator[Tensor]:
    return iter(torch.split(rows, 4))


def test_rows_are_mapped_from_a_file_without_a_name(tmp_path: Path) -> None:
    rows = torch.randn(10, 3)
    mapped = mapped_rows(pieces(rows), (10, 3), tmp_path / "new")
    assert mapped.equal(rows)
    assert mapped.untyped_storage().filename is not None
    assert not list((tmp_path / "new").iterdir())


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TrainingError, match=r"\[10, 3\] numbers, 120 bytes, .*No space left"):
        mapped_rows(pieces(torch.randn(10, 3)), (10, 3), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("normalize", [False, True])
def test_its_embeddings_are_those_of_a_factorization(tmp_path: Path, normalize: bool) -> None:
    whole = Factorization(SCHEMA, 4, generator=torch.Generator().manual_seed(2))
    whole.normalize = normalize
    gathered = GatheredFactorization(SCHEMA, 4, normalize=normalize)
    gathered.folder = tmp_path
    gathered.set_rows("query", whole.query.weight.detach())
    gathered.set_rows("candidate", whole.candidate.weight.detach())
    for side, vectors in gathered.eval().embed_all(CORPUS).items():
        assert vectors.equal(whole.eval().embed_all(CORPUS)[side])
    state = gathered.state_dict()
    assert all(value.equal(state[name]) for name, value in whole.state_dict().items())
