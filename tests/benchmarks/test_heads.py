"""The benchmark of heads over three links: what a head cannot change, and the table."""

from __future__ import annotations

import pytest
import torch
from benchmarks.heads import table, versions_of
from benchmarks.residual_heads import HeadSettings, Sides, least_squares
from torch import Tensor


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_no_linear_head_changes_what_a_chain_ofleast_squares_reads() -> None:
    meaning = normal(3000, 10)
    # The newest knows parts of the oldest, 0 and 1, that the middle one does not.
    parts = [*range(8)], [*range(2, 10)], [0, 1, 2, 3, 6, 7, 8, 9]
    spaces = [meaning[:, part] @ normal(8, 8, seed=n) for n, part in enumerate(parts, start=1)]

    def read_back(middle: Tensor) -> Tensor:
        own = [Sides(space, space, space) for space in (spaces[0], middle, spaces[2])]
        versions, chain = versions_of("post hoc", own, torch.arange(10), HeadSettings(), 0)
        return chain.apply(versions[-1].texts, 2, 0)

    linear = torch.eye(8) + 0.3 * normal(8, 8, seed=9)
    before, after = read_back(spaces[1]), read_back(spaces[1] @ linear)
    assert float((before - after).norm() / before.norm()) < 0.03
    # The chain has lost something, so that there was something to change.
    direct = spaces[2] @ least_squares(spaces[2], spaces[0]).T
    assert float((before - direct).norm() / direct.norm()) > 0.1


def test_the_table_shows_differences_of_the_same_queries() -> None:
    keys = ("own task", "chain", "refit", "chain, old queries", "refit, old queries")
    hard = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain = dict.fromkeys(keys, hard)
    shown = table({"c": {"post hoc": plain, "heads": {**plain, "chain": hard + 0.1}}})
    row = next(line for line in shown.splitlines() if line.startswith("| c | heads"))
    # Paired: the same difference for each query has an interval without width.
    assert row.count("+0.100 (+0.100 to +0.100)") == 2
    assert row.count("+0.000 (+0.000 to +0.000)") == 1
    with pytest.raises(KeyError):
        table({"c": {"post hoc": plain}})
