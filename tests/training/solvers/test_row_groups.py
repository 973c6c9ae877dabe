"""Groups hold every entity and every pair once, whatever their size."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.training.solvers.row_groups import row_groups


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=40),
    st.integers(1, 60),
)
def test_groups_are_a_partition_of_rows_and_of_pairs(pairs: list[tuple[int, int]], at: int) -> None:
    rows, partners = torch.tensor(pairs).T
    numbers = torch.arange(1, len(pairs) + 1).double()
    members, sums, seen = [], torch.zeros(9, dtype=torch.float64), []
    longest = 10**9
    for group in row_groups(rows, partners, numbers, 2 * numbers, 9, at):
        assert len(group.rows) == 1 or len(group.rows) * max(group.longest, 4) <= at
        assert group.longest <= longest
        longest = group.longest
        members += group.rows.tolist()
        real = group.pull > 0
        for row, its, own in zip(group.rows.tolist(), group.partners, group.pull, strict=True):
            at_own = own[own > 0].long() - 1
            assert rows[at_own].eq(row).all()
            assert torch.equal(partners[at_own], its[own > 0].long())
            seen += at_own.tolist()
        assert torch.equal(group.wanted, 2 * group.pull)
        assert not group.partners[~real].any()
        sums[group.rows] += group.pull.sum(1)
    assert sorted(members) == list(range(9))
    assert sorted(seen) == list(range(len(pairs)))
    expected = torch.zeros(9, dtype=torch.float64).index_add_(0, rows, numbers)
    assert torch.equal(sums, expected)
