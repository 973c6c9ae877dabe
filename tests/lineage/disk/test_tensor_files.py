"""Tensors are read as they were saved, and a file that is none is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evergram.errors import IntegrityError
from evergram.lineage.disk.tensor_files import load_tensors, save_tensors


def test_tensors_are_read_as_they_were_saved(tmp_path: Path) -> None:
    wide = torch.arange(6.0, requires_grad=True).reshape(2, 3)
    # A transposed view does not lie in one piece.
    tensors = {"a": wide.T, "b": torch.tensor(3), "c": torch.ones(2).double()}
    save_tensors(tensors, tmp_path / "t")
    loaded = load_tensors(tmp_path / "t")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor)
        assert loaded[name].dtype == tensor.dtype
        assert not loaded[name].requires_grad


def test_a_file_that_holds_no_tensors_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"x" * 20)
    for name in ("t", "none"):
        with pytest.raises(IntegrityError, match=f"{name} cannot be read"):
            load_tensors(tmp_path / name)
