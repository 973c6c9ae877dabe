"""One process has all rows; of several each has its share, and together they have all."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evergram.collectives import ALONE, Collectives, is_first_process, process_count


@given(st.integers(0, 200), st.integers(1, 9))
def test_shares_are_all_rows_once_and_in_order(count: int, size: int) -> None:
    rows: list[int] = []
    for rank in range(size):
        collectives = Collectives()
        collectives.rank, collectives.size = rank, size
        place = collectives.share(count)
        mine = range(count)[place]
        assert len(mine) == collectives.counts(count)[rank]
        rows += mine
    assert rows == list(range(count))
    sizes = collectives.counts(count)
    assert max(sizes) - min(sizes) <= 1


def test_one_process_is_the_identity() -> None:
    rows = torch.randn(5, 2)
    assert ALONE.is_first
    assert ALONE.share(5) == slice(0, 5)
    assert ALONE.sum(rows, "rows") is rows
    assert ALONE.rows(rows, 5, "rows") is rows
    assert ALONE.sparse_rows(rows, 5, "rows") is rows
    assert ALONE.from_first(lambda: {"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("size", "rank", "count", "first"),
    [("", "", 1, True), ("1", "0", 1, True), ("2", "0", 2, True), ("2", "1", 2, False)],
)
def test_torchrun_says_which_process_this_is(
    monkeypatch: pytest.MonkeyPatch, size: str, rank: str, count: int, first: bool
) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setenv("RANK", rank)
    assert process_count() == count
    assert is_first_process() is first
