"""Adam on a table whose gradient has some rows is Adam with zeros in the others."""

from __future__ import annotations

import torch
from torch import nn

from evergram.training.optimizers.dense_adam import DenseAdam


def test_sparse_gradients_are_dense_ones() -> None:
    tables = [nn.Embedding(5, 3, sparse=sparse) for sparse in (True, False)]
    tables[1].load_state_dict(tables[0].state_dict())
    optimizers = [
        DenseAdam(tables[0].parameters(), 0.1),
        torch.optim.Adam(tables[1].parameters(), 0.1),
    ]
    for ids in ([0, 3, 3], [1], [4, 0]):
        for table, optimizer in zip(tables, optimizers, strict=True):
            optimizer.zero_grad()
            table(torch.tensor(ids)).square().sum().backward()
            optimizer.step()
    # By the same formula; in some runs one of fifteen numbers is rounded otherwise.
    torch.testing.assert_close(tables[0].weight, tables[1].weight, rtol=1e-6, atol=1e-7)
    rest = tables[0].weight.detach()[3].clone()
    tables[0].zero_grad()
    tables[0](torch.tensor([1])).sum().backward()
    optimizers[0].step()
    assert not torch.equal(tables[0].weight[3], rest)  # it goes on by its mean
