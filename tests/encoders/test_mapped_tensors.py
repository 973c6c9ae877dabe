"""Mapped tensors are plain ones whose numbers are on disk, and leave nothing there."""

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


def test_views_and_parameters_say_where_they_are_mapped(tmp_path: Path) -> None:
    table = mapped_zeros((4, 3), tmp_path)
    for tensor in (table, table[1:], torch.nn.Parameter(table), table.detach()):
        assert mapping_folder(tensor) == tmp_path
    path = tmp_path / "another"
    path.write_bytes(bytes(16))
    other = torch.from_file(str(path), shared=True, size=4)
    for tensor in (table.clone(), torch.zeros(3), other, torch.eye(2).to_sparse()):
        assert mapping_folder(tensor) is None


def test_a_tensor_without_numbers_needs_no_file(tmp_path: Path) -> None:
    assert mapped_zeros((0, 3), tmp_path).shape == (0, 3)


@settings(deadline=None)
@given(st.booleans(), st.booleans())
def test_copies_and_zeros_are_where_the_tensor_is(mapped: bool, again: bool) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    values = torch.arange(6.0).view(2, 3)
    tensor = mapped_zeros((5,), folder) if mapped else torch.zeros(5)
    copy = copied_beside(values, tensor)
    assert torch.equal(copy, values)
    assert mapping_folder(copy) == mapping_folder(tensor)
    assert mapping_folder(zeros_beside(tensor, 4)) == mapping_folder(tensor)
    second = copied_beside(values + 1, tensor, copy if again else None)
    assert torch.equal(second, values + 1)
    # Written over only where it is a file's, and was given.
    assert (second.data_ptr() == copy.data_ptr()) == (mapped and again)
    other_shape = copied_beside(values[:1], tensor, copy)
    assert other_shape.data_ptr() != copy.data_ptr()


def test_a_full_disk_is_an_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TrainingError, match=r"12,000 bytes, cannot be mapped .* No space left"):
        mapped_zeros((1000, 3), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"cannot be mapped from .*none: No such file"):
        mapped_zeros((1, 1), tmp_path / "none")


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path;"
        "from evergram.encoders.mapped_tensors import mapped_zeros;"
        "t = mapped_zeros((1000, 8), Path(sys.argv[1])); t += 1; os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert ended.returncode == -9
    assert list(tmp_path.iterdir()) == []
