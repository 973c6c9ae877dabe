"""A divided table: its parts, its draws, and steps of several processes that equal one's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.support.several_processes import train_cases
from tests.support.sharded_training import CASES, states
from torch import nn

from evergram.collectives import ALONE
from evergram.training.sharding import sharded_table
from evergram.training.sharding.sharded_table import ShardedTable, draw_shard, shard_of

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
