"""Each row moves by its definition, and the basis of the columns does not matter."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.support.largest_tensor import LargestTensor
from torch import Tensor, nn

from evergram.encoders.mapped_tensors import mapped_zeros, mapping_folder
from evergram.training.optimizers.row_adagrad import RowAdagrad


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(rows: Tensor, *, sparse: bool = True) -> nn.Embedding:
    table = nn.Embedding(len(rows), rows.shape[1], sparse=sparse)
    with torch.no_grad():
        table.weight.copy_(rows)
    return table


def run(table: nn.Embedding, batches: list[list[int]], turn: Tensor | None = None) -> Tensor:
    """Pull the rows of each batch towards fixed targets."""
    optimizer = RowAdagrad(table.parameters(), 0.1)
    target = normal(6, 3, seed=5)
    target = target if turn is None else target @ turn
    for ids in batches:
        rows = torch.tensor(ids)
        loss = (table(rows) - target[rows]).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return table.weight.detach()


BATCHES = [[0, 1, 1, 4], [1, 2], [0, 0, 0], [5, 1]]


def test_each_row_goes_by_the_squares_of_its_own_gradients() -> None:
    start = normal(6, 3)
    table = filled(start)
    moved = run(table, BATCHES)
    expected, target = start.clone(), normal(6, 3, seed=5)
    for row in range(6):
        total = 0.0
        for ids in BATCHES:
            if row in ids:  # a row that a batch holds twice has the sum of both gradients
                gradient = ids.count(row) * 2 * (expected[row] - target[row])
                total += float(gradient.square().mean())
                expected[row] -= 0.1 * gradient / total**0.5
    torch.testing.assert_close(moved, expected)
    assert torch.equal(moved[3], start[3])


def test_sparse_and_dense_gradients_give_the_same() -> None:
    tables = [filled(normal(6, 3), sparse=sparse) for sparse in (True, False)]
    torch.testing.assert_close(*(run(table, BATCHES) for table in tables))


def test_the_basis_does_not_matter() -> None:
    turn = torch.linalg.qr(normal(3, 3, seed=9)).Q
    plain = filled(normal(6, 3))
    turned = filled(normal(6, 3) @ turn)
    moved = run(turned, BATCHES, turn)
    torch.testing.assert_close(moved, run(plain, BATCHES) @ turn, rtol=1e-4, atol=1e-5)


def test_a_sparse_step_makes_nothing_of_the_size_of_the_table() -> None:
    table = nn.Embedding(50_000, 3, sparse=True)
    optimizer = RowAdagrad(table.parameters(), 0.1)
    table(torch.tensor([7, 7, 49_999])).square().sum().backward()
    with LargestTensor() as largest:
        optimizer.step()
    assert largest.bytes < 1000


def test_the_state_of_a_mapped_table_is_mapped_and_moves_it_as_one_in_memory(
    tmp_path: Path,
) -> None:
    rows = normal(6, 3)
    in_file = mapped_zeros((6, 3), tmp_path)
    in_file.copy_(rows)
    mapped = nn.Embedding(6, 3, sparse=True, _weight=in_file)
    optimizer = RowAdagrad(mapped.parameters(), 0.1)
    assert mapping_folder(optimizer.state[mapped.weight]["sum"]) == tmp_path
    assert torch.equal(run(mapped, BATCHES), run(filled(rows), BATCHES))
