"""Each row moves by its definition, and the basis of the columns does not matter."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
