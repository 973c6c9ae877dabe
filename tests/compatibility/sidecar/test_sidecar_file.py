"""A sidecar on disk: the same bits again, and never beside other vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from evergram.compatibility.sidecar.sidecar import Sidecar
from evergram.compatibility.sidecar.sidecar_file import (
    KEY,
    content_digest,
    read_sidecar,
    write_sidecar,
)
from evergram.errors import DataError, IntegrityError

IDS = [f"d{i}" for i in range(30)]


def written(path: Path, *, offset: bool = True) -> tuple[Sidecar, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    new, old = torch.randn(30, 5, generator=draw), torch.randn(30, 3, generator=draw)
    shift = torch.ones(3) if offset else None
    sidecar = Sidecar.fit(torch.randn(3, 5, generator=draw), shift, new, old, 2)
    codes = sidecar.encode(new, old)
    write_sidecar(path, sidecar, codes, IDS)
    return sidecar, codes, new


@pytest.mark.parametrize("offset", [True, False])
def test_it_reads_the_same_vectors_again(tmp_path: Path, offset: bool) -> None:
    path = tmp_path / "s.safetensors"
    sidecar, codes, new = written(path, offset=offset)
    again, same_codes = read_sidecar(path, IDS)
    assert torch.equal(codes, same_codes)
    assert torch.equal(again.read(new, same_codes), sidecar.read(new, codes))
    assert again.relative_error == sidecar.relative_error


def test_other_ids_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    sidecar, codes, _ = written(path)
    for ids in (IDS[::-1], IDS[:-1], [*IDS[:-1], "other"]):
        with pytest.raises(IntegrityError, match="other ids"):
            read_sidecar(path, ids)
    # Ids that run together are other ids.
    write_sidecar(path, sidecar, codes[:2], ["ab", "c"])
    with pytest.raises(IntegrityError):
        read_sidecar(path, ["a", "bc"])
    write_sidecar(path, sidecar, codes[:2], [1, 2])
    read_sidecar(path, ["1", "2"])


def test_damage_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    sidecar, codes, _ = written(path)
    record = {"format_version": 1, "missing": 0.1, "power": 1.0, "ids": "x", "content": "y"}
    record |= {"memory": 5}
    tensors = load_file(path)
    for changed, message in (
        (record | {"format_version": 4}, "format version 4.* reads 1"),
        ({"format_version": 1}, "cannot be read as a sidecar"),
    ):
        save_file(tensors, path, {KEY: json.dumps(changed)})
        with pytest.raises(DataError, match=message):
            read_sidecar(path, IDS)
    for wrong in (
        {"scales": torch.ones(7, dtype=torch.float64)},
        {"bits": tensors["bits"] + 8},
        {"bits": tensors["bits"] * 0},
        {"levels": tensors["levels"][:-1]},
        {"levels": tensors["levels"] * torch.nan},
        {"codes": tensors["codes"][:, :1].contiguous()},
        {"codes": tensors["codes"].to(torch.int8)},
    ):
        content = content_digest(tensors | wrong)
        save_file(tensors | wrong, path, {KEY: json.dumps(record | {"content": content})})
        with pytest.raises(DataError, match="do not fit together"):
            read_sidecar(path, IDS)
    for changed in (record, record | {"content": content_digest(tensors), "memory": 4}):
        save_file(tensors, path, {KEY: json.dumps(changed)})
        with pytest.raises(DataError, match="do not fit together"):
            read_sidecar(path, IDS)
    del record["memory"]
    save_file(tensors, path, {KEY: json.dumps(record | {"content": content_digest(tensors)})})
    with pytest.raises(DataError, match="cannot be read as a sidecar"):
        read_sidecar(path, IDS)
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read as a sidecar"):
        read_sidecar(path, IDS)
    with pytest.raises(DataError, match="one id for each row"):
        write_sidecar(path, sidecar, codes, IDS[:-1])
    with pytest.raises(DataError, match="cannot be written"):
        write_sidecar(tmp_path / "none" / "s", sidecar, codes, IDS)
