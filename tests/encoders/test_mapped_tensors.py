"""Tables are drawn, hashed, looked up and mapped as plain ones in memory would be."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.encoders import encoder
from evergram.encoders.encoder import (
    draw_normal,
    embedding_table,
    join_blocks,
    look_up,
    unit_rows,
)
from evergram.encoders.features import HashedRows
from evergram.encoders.mapped_tensors import (
    copied_beside,
    mapped_zeros,
    mapping_folder,
    zeros_beside,
)
from evergram.errors import TrainingError


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
        "from evergram.encoders.mapped_tensors import mapped_zeros;"
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "ROWS", block)
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


IDS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30),
    st.lists(st.text(st.characters(blacklist_categories=["Cs"]), max_size=12), max_size=30),
)


def row_of(text: str, table: str, count: int, seed: int) -> int:
    """The definition in the class's docstring, one id at a time."""
    key = hashlib.blake2b(f"{table}\0hash_rows {seed}".encode()).digest()
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "little") % count


@settings(deadline=None)
@given(IDS, st.integers(1, 2**31 - 1), st.integers(0, 9), st.sampled_from(["id", "query.id"]))
def test_a_row_is_that_of_the_definition(
    ids: list[int] | list[str], count: int, seed: int, table: str
) -> None:
    kind = pa.string() if ids and isinstance(ids[0], str) else pa.int64()
    rows = HashedRows(count, seed).rows(pa.array(ids, kind), table)
    assert rows.dtype == torch.int64
    assert rows.tolist() == [row_of(str(one), table, count, seed) for one in ids]


def test_a_missing_id_has_no_row() -> None:
    rows = HashedRows(10).rows(pa.array(["a", None, "b"]), "id")
    assert (rows >= 0).tolist() == [True, False, True]


def test_rows_are_uniform_and_independent_of_seed_and_table() -> None:
    """χ² over 64 rows, and over the cells of two hashes' rows; 5 σ above their expectation."""
    ids, count = pa.array(np.arange(40_000)), 64
    chosen = [
        HashedRows(count, seed).rows(ids, table)
        for seed, table in ((0, "query.id"), (1, "query.id"), (0, "candidate.id"))
    ]
    cells = [chosen[0], *(chosen[0] * count + other for other in chosen[1:])]
    for rows, size in zip(cells, (count, count**2, count**2), strict=True):
        expected = len(ids) / size
        chi = float(((torch.bincount(rows, minlength=size) - expected) ** 2 / expected).sum())
        assert abs(chi - (size - 1)) < 5 * (2 * (size - 1)) ** 0.5
