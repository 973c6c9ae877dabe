"""The gradient of the whole batch from those of shares; processes are simulated in threads."""

from __future__ import annotations

from threading import Lock

import torch
from tests.support.thread_processes import in_threads
from torch import Tensor, nn

from evergram.collectives import ALONE, Collectives
from evergram.training.distributed.gradients import gathers, sum_gradients

# torch's generator is one for all threads.
SEEDING = Lock()


def trained(rank: int, size: int, rows: int, collectives: Collectives) -> list[Tensor | None]:
    """Return the gradients, and the objective, after a backward pass of a process's rows."""
    with SEEDING:
        torch.manual_seed(0)
        table, layer = nn.Embedding(rows, 3, sparse=True), nn.Linear(3, 2)
        unused, rare = nn.Linear(2, 2), nn.Linear(2, 1, bias=False)
        weight = torch.rand(12)
    ids = torch.arange(12) % rows
    own = Collectives.share(collectives, 12) if size > 1 else slice(None)
    out = layer(table(ids[own])) * weight[own, None]
    loss = out.square().sum()
    if rank == size - 1:  # a parameter that one process alone has a gradient of
        loss = loss + rare(torch.ones(1, 2)).sum()
    loss.backward()
    parameters = [*table.parameters(), *layer.parameters(), *rare.parameters()]
    optimizers = [torch.optim.SGD(parameters[:1], 0.1), torch.optim.SGD(parameters[1:], 0.1)]
    optimizers.append(torch.optim.SGD(unused.parameters(), 0.1))
    value = sum_gradients(optimizers, loss.detach(), collectives)
    assert all(p.grad is None for p in unused.parameters())
    grads = [None if p.grad is None else p.grad.to_dense() for p in parameters]
    return [*grads, value]


def check(rows: int, size: int, tables: str) -> None:
    alone = trained(0, 1, rows, ALONE)
    results, processes = in_threads(size, lambda p: trained(p.rank, size, rows, p))
    for result in results:
        for together, one in zip(result, alone, strict=True):
            torch.testing.assert_close(together, one)
    assert processes[0].kinds.count(tables) == 1


def test_touched_rows_are_gathered_of_a_large_table() -> None:
    check(500, 3, "tables, gathered")


def test_a_small_table_is_summed_whole() -> None:
    check(6, 3, "tables")


def test_whichever_moves_fewer_bytes() -> None:
    table = torch.zeros(1000, 16)  # rows of 64 bytes, ids of 8
    # Four processes: 4 · 444 · 72 bytes against 2 · 1000 · 64.
    assert gathers(table, 444, 4)
    assert not gathers(table, 445, 4)
