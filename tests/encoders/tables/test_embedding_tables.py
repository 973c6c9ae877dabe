"""Tables are drawn, looked up and joined as one draw, one look-up and one tensor would be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.encoders.mapped_tensors import mapping_folder
from evergram.encoders.tables import embedding_tables
from evergram.encoders.tables.embedding_tables import (
    draw_normal,
    embedding_table,
    join_blocks,
    look_up,
)


@given(st.lists(st.integers(1, 5), max_size=5))
def test_joined_blocks_are_the_rows_in_their_order(sizes: list[int]) -> None:
    rows = torch.arange(3 * sum(sizes)).float().view(-1, 3)
    joined = join_blocks(iter(torch.split(rows, sizes) if sizes else ()), len(rows), 3)
    assert joined.shape == rows.shape
    assert torch.equal(joined, rows)


def test_rows_that_are_all_known_are_those_of_the_masked_look_up_bit_by_bit() -> None:
    ids = torch.tensor([3, 0, 3, 2])
    gradients = []
    for has_all in (True, False):
        table = embedding_table(4, 5, 1.0, torch.Generator().manual_seed(0))
        rows = look_up(table, ids, has_all=has_all)
        assert torch.equal(rows, table.weight[ids])
        rows.square().sum().backward()  # type: ignore[no-untyped-call]
        assert table.weight.grad is not None
        gradients.append(table.weight.grad.to_dense())
    assert torch.equal(*gradients)


@settings(deadline=None)
@given(st.integers(1, 70), st.integers(1, 5), st.sampled_from([16, 32, 64]))
def test_a_table_drawn_in_blocks_is_that_of_one_draw(rows: int, dim: int, block: int) -> None:
    """Bit by bit, whatever is left over at the end."""
    whole, blocks = torch.empty(rows, dim), torch.empty(rows, dim)
    draws = [torch.Generator().manual_seed(3) for _ in range(2)]
    torch.nn.init.normal_(whole, std=0.3, generator=draws[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding_tables, "ROWS", block)
        draw_normal(blocks, 0.3, draws[1])
    assert torch.equal(whole, blocks)
    assert torch.equal(draws[0].get_state(), draws[1].get_state())


def test_a_mapped_table_is_one_in_memory_with_the_same_numbers(tmp_path: Path) -> None:
    draws = [torch.Generator().manual_seed(1) for _ in range(2)]
    plain = embedding_table(40, 3, 0.2, draws[0])
    mapped = embedding_table(40, 3, 0.2, draws[1], tmp_path)
    assert torch.equal(plain.weight, mapped.weight)
    assert mapped.weight.requires_grad
    assert mapped.sparse
    assert mapping_folder(mapped.weight) == tmp_path
    assert mapping_folder(plain.weight) is None


def test_joined_blocks_are_mapped_where_a_folder_is_given(tmp_path: Path) -> None:
    rows = torch.arange(12.0).view(6, 2)
    joined = join_blocks(torch.split(rows, 4), 6, 2, tmp_path)
    assert torch.equal(joined, rows)
    assert mapping_folder(joined) == tmp_path
