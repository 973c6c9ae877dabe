"""Tables are drawn, looked up and mapped as plain ones in memory would be."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram import mapped_tensors
from evergram.encoders.encoder import (
    embedding_table,
    look_up,
    unit_rows,
)
from evergram.errors import TrainingError
from evergram.mapped_tensors import (
    copied_beside,
    draw_normal,
    fill,
    join_blocks,
    mapped_zeros,
    mapping_folder,
    zeros_beside,
)


def maps_of(folder: Path) -> list[str]:
    return [
        line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line
    ]


def test_a_mapped_tensor_holds_numbers_in_a_file_without_a_name(tmp_path: Path) -> None:
    table = mapped_zeros((1000, 3), tmp_path)
    assert not bool(table.any())
    table[7] += 2.0
    assert table.sum() == 6.0
    assert table.dtype == torch.float32
    assert list(tmp_path.iterdir()) == []
    mapped = maps_of(tmp_path)
    assert len(mapped) == 1
    assert mapped[0].endswith("(deleted)")
    assert mapped[0].split()[1].endswith("s")  # shared: its pages are the file's
    del table
    assert maps_of(tmp_path) == []


@settings(deadline=None)
@given(st.booleans(), st.booleans())
def test_copies_and_zeros_are_where_the_tensor_is(mapped: bool, again: bool) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    values = torch.arange(6.0).view(2, 3)
    tensor = mapped_zeros((5,), folder) if mapped else torch.zeros(5)
    copy = copied_beside(values, tensor)
    assert torch.equal(copy, values)
    for made in (copy, zeros_beside(tensor, 4)):
        assert mapping_folder(made) == mapping_folder(tensor)
    second = copied_beside(values + 1, tensor, copy if again else None)
    assert torch.equal(second, values + 1)
    # Written over only where it is a file's, was given, and fits.
    assert (second.data_ptr() == copy.data_ptr()) == (mapped and again)
    assert copied_beside(values[:1], tensor, copy).data_ptr() != copy.data_ptr()


@pytest.mark.parametrize("mapped", [False, True])
def test_tables_of_any_type_are_filled_in_blocks(
    mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_tensors, "ROWS", 3)
    like = mapped_zeros((2,), tmp_path) if mapped else torch.zeros(2)
    for size in (0, 3, 7):
        for dtype in (torch.int64, torch.float64):
            table = zeros_beside(like, size, 2, dtype=dtype)
            assert table.dtype == dtype
            assert mapping_folder(table) == (tmp_path if mapped and size else None)
            values = torch.arange(2 * size, dtype=dtype).view(size, 2)
            assert fill(table, lambda rows, v=values: v[rows]) is table  # type: ignore[misc]
            assert torch.equal(table, values)


def test_a_full_disk_is_an_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TrainingError, match=r"12,000 bytes, cannot be mapped .* No space left"):
        mapped_zeros((1000, 3), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path;"
        "from evergram.mapped_tensors import mapped_zeros;"
        "t = mapped_zeros((1000, 8), Path(sys.argv[1])); t += 1; os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert ended.returncode == -9
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sizes", [[], [3], [1, 4, 2]])
@pytest.mark.parametrize("mapped", [False, True])
def test_joined_blocks_are_the_rows_in_their_order(
    sizes: list[int], mapped: bool, tmp_path: Path
) -> None:
    rows, folder = torch.arange(3 * sum(sizes)).float().view(-1, 3), tmp_path if mapped else None
    joined = join_blocks(iter(torch.split(rows, sizes) if sizes else ()), len(rows), 3, folder)
    assert joined.shape == rows.shape
    assert torch.equal(joined, rows)
    assert len(sizes) < 2 or mapping_folder(joined) == folder


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
    draw_normal(blocks, 0.3, draws[1], block)
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


def test_unit_rows_are_torchs_with_its_gradient() -> None:
    """Also of a row of zeros, and of a long one."""
    rows = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows[2] = 0
    rows[4] *= 1e6
    grad = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    results = []
    for function in (unit_rows, torch.nn.functional.normalize):
        inputs = rows.clone().requires_grad_()
        unit = function(inputs)
        unit.backward(grad)  # type: ignore[no-untyped-call]
        results.append((unit.detach(), inputs.grad))
    for own, theirs in zip(*results, strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-12, atol=1e-12)
    inputs = rows[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(unit_rows, inputs)
