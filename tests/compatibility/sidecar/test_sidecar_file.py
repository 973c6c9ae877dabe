"""A sidecar on disk: the same bits again, and never beside other vectors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from evergram.compatibility.sidecar.packed_bits import pack
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


@pytest.mark.parametrize("ids", [IDS[::-1], IDS[:-1], [*IDS[:-1], "other"]])
def test_other_ids_are_refused(tmp_path: Path, ids: list[str]) -> None:
    written(tmp_path / "s.safetensors")
    with pytest.raises(IntegrityError, match="other ids"):
        read_sidecar(tmp_path / "s.safetensors", ids)


def test_ids_that_run_together_are_other_ids(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    sidecar, codes, _ = written(path)
    write_sidecar(path, sidecar, codes[:2], ["ab", "c"])
    with pytest.raises(IntegrityError):
        read_sidecar(path, ["a", "bc"])
    write_sidecar(path, sidecar, codes[:2], [1, 2])
    read_sidecar(path, ["1", "2"])


def test_damage_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    sidecar, codes, _ = written(path)
    record = {"format_version": 3, "missing": 0.1, "power": 1.0, "ids": "x", "content": "y"}
    record |= {"memory": 5}
    tensors = load_file(path)
    for changed, message in (
        (record | {"format_version": 4}, "format version 4.* reads 1 to 3"),
        ({"format_version": 3}, "cannot be read as a sidecar"),
        # Another format's record on these tensors.
        (record | {"format_version": 1, "left": 0.1}, "cannot be read as a sidecar"),
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


def test_a_file_of_format_2_reads_as_it_did(tmp_path: Path) -> None:
    # Each coordinate was rounded alone: the levels of b bits are 2^b, and begin at 2^b − 2.
    path = tmp_path / "s.safetensors"
    draw = torch.Generator().manual_seed(2)
    weight, levels = torch.eye(3, dtype=torch.float64), torch.arange(510.0, dtype=torch.float64)
    scales, bits = torch.tensor([2.0, 1.0, 0.5]).double(), torch.tensor([4, 3, 1])
    codes = torch.stack([torch.randint(2**b, (30,), generator=draw) for b in bits.tolist()], 1)
    packed = torch.from_numpy(pack(codes.to(torch.uint8).numpy(), bits.numpy()))
    tensors = {"weight": weight, "basis": weight.flip(0).contiguous(), "scales": scales}
    tensors |= {"levels": levels, "bits": bits.to(torch.uint8), "codes": packed}
    written(path)
    with safe_open(path, framework="pt") as file:
        ids = json.loads(file.metadata()[KEY])["ids"]
    record = {"format_version": 2, "missing": 0.5, "power": 2.0, "ids": ids}
    record |= {"content": content_digest(tensors)}
    save_file(tensors, path, {KEY: json.dumps(record)})
    sidecar, read = read_sidecar(path, IDS)
    new = torch.randn(30, 3, generator=draw, dtype=torch.float64)
    expected = new + ((2**bits - 2 + codes) * scales).flip(1)
    torch.testing.assert_close(sidecar.read(new, read), expected, rtol=0, atol=1e-12)
    assert sidecar.relative_error == 0.5
    # Written again, it is of the present format, and the same.
    assert torch.equal(sidecar.encode(new, expected), packed)
    write_sidecar(path, sidecar, read, IDS)
    again, same = read_sidecar(path, IDS)
    assert torch.equal(again.read(new, same), sidecar.read(new, read))


def test_a_file_of_format_1_reads_as_it_did(tmp_path: Path) -> None:
    # Its codes were int8, a coordinate each, with steps of `scales`.
    path = tmp_path / "s.safetensors"
    draw = torch.Generator().manual_seed(1)
    weight = torch.randn(3, 5, generator=draw, dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(3, 2, generator=draw, dtype=torch.float64))[0]
    scales = torch.tensor([0.02, 0.0], dtype=torch.float64)
    codes = torch.tensor([[-127, 0], [0, 0], [127, 0]], dtype=torch.int8)
    tensors = {"weight": weight, "basis": basis.contiguous(), "scales": scales, "codes": codes}
    ids = hashlib.sha256(b"".join(len(i).to_bytes(8, "big") + i for i in (b"a", b"b", b"c")))
    record = {"format_version": 1, "left": 0.25, "power": 1.0, "ids": ids.hexdigest()}
    save_file(tensors, path, {KEY: json.dumps(record)})
    sidecar, read = read_sidecar(path, ["a", "b", "c"])
    new = torch.randn(3, 5, generator=draw, dtype=torch.float64)
    expected = new @ weight.T + (codes * scales) @ basis.T
    torch.testing.assert_close(sidecar.read(new, read), expected, rtol=0, atol=1e-12)
    assert sidecar.relative_error == pytest.approx((0.25 + 0.02**2 / 12) ** 0.5)
    # Objects are encoded by the steps that it has.
    old = new @ weight.T + 0.1 * basis[:, 0]
    assert sidecar.encode(new, old)[:, 0].tolist() == [133, 133, 133]
    write_sidecar(path, sidecar, read, ["a", "b", "c"])
    again, same = read_sidecar(path, ["a", "b", "c"])
    assert torch.equal(again.read(new, same), sidecar.read(new, read))
