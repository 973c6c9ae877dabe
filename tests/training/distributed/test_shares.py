"""What a process does of a step, by processes that are simulated one after the other."""

from __future__ import annotations

import torch

from evergram.collectives import ALONE, Collectives
from evergram.data.sampling import Draw
from evergram.training.distributed.shares import part_of, rows_of_all


def process(rank: int, size: int) -> Collectives:
    collectives = Collectives()
    collectives.rank, collectives.size = rank, size
    return collectives


def test_one_process_has_its_rows_untouched() -> None:
    ids = torch.arange(3)
    part = part_of(ids, 3, ALONE)
    assert part.rows is ids
    assert part.portion == 1


def test_portions_weigh_unequal_shares_right() -> None:
    draw = Draw(torch.arange(7), torch.rand(7, 2))
    parts = [part_of(draw, 7, process(rank, 3)) for rank in range(3)]
    assert [len(p.rows.ids) for p in parts] == [2, 2, 3]
    means = torch.stack([p.portion * p.rows.weights.mean(0) for p in parts])
    torch.testing.assert_close(means.sum(0), draw.weights.mean(0))


def test_a_process_without_rows_has_one_that_counts_for_nothing() -> None:
    draw = Draw(torch.tensor([4]), torch.tensor([[2.0]]))
    part = part_of(draw, 1, process(0, 2))
    assert part.rows.ids.tolist() == [4]
    assert part.portion == 0
    assert part.counted(part.rows.weights).tolist() == [[0.0]]
    assert part_of(draw, 1, process(1, 2)).portion == 1


class Gathering(Collectives):
    """Knows the others' rows."""

    def __init__(self, all_rows: torch.Tensor, rank: int, size: int) -> None:
        self.all_rows, self.rank, self.size = all_rows, rank, size

    def rows(self, mine: torch.Tensor, count: int, kind: str) -> torch.Tensor:
        return self.all_rows.clone()


def test_gradients_of_gathered_rows_are_those_of_the_whole_loss() -> None:
    """Each process counts for its part of a loss that all compute, and has its rows' gradient."""
    rows = torch.randn(5, 2, dtype=torch.float64)
    whole = rows.clone().requires_grad_()
    torch.autograd.backward((whole @ whole.T).exp().sum().log())
    gradients = []
    for rank in range(3):
        collectives = Gathering(rows, rank, 3)
        mine = rows[collectives.share(5)].clone().requires_grad_()
        gathered = rows_of_all(mine, 5, collectives)
        torch.autograd.backward((gathered @ gathered.T).exp().sum().log() / 3)
        assert mine.grad is not None
        gradients.append(mine.grad)
    assert whole.grad is not None
    torch.testing.assert_close(torch.cat(gradients), whole.grad)
