"""Write and read a sidecar and its codes: one safetensors file beside the file of new vectors.

Tensors: `weight`, `offset` (if there is one), `basis`, `scales`, `levels` (float64); `bits`,
`codes` (uint8). The only key of the metadata, `KEY`, is JSON: `format_version`, `missing`, `power`,
`memory`, `content` (the SHA-256 of the tensors) and `ids`: that of the ids in the order of the
codes, since codes beside other vectors would read as nonsense.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from evergram.atomic_files import replacing
from evergram.compatibility.sidecar.normal_levels import MOST_BITS
from evergram.compatibility.sidecar.sidecar import Sidecar
from evergram.compatibility.sidecar.trellis import LEVELS, TAPS
from evergram.errors import DataError, IntegrityError
from evergram.system_errors import reason_and_remedy

KEY = "evergram.sidecar"
FORMAT_VERSION = 1


def write_sidecar(
    path: Path,
    sidecar: Sidecar,
    codes: Tensor | npt.NDArray[np.uint8],
    ids: Sequence[int | str],
) -> None:
    """Write a sidecar, whole or not at all, over an existing file.

    Args:
        codes: uint8 [N, size] of `Sidecar.encode`.
        ids: of the N objects, in the order of the codes.
    Raises: DataError: there are not N ids of so many bytes, or the file cannot be written.
    """
    if codes.shape != (len(ids), sidecar.size):
        raise DataError(
            f"The codes are {list(codes.shape)}, and there are {len(ids)} ids of {sidecar.size} "
            "bytes; give one id for each row of codes."
        )
    tensors = sidecar_tensors(sidecar) | {"codes": torch.as_tensor(codes).contiguous()}
    record = {
        "format_version": FORMAT_VERSION,
        "content": content_digest(tensors),
        "memory": sidecar.memory,
        "missing": sidecar.missing,
        "power": sidecar.power,
        "ids": _digest(ids),
    }
    content = save(tensors, {KEY: json.dumps(record)})
    try:
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {reason_and_remedy(error)}.") from error


def read_sidecar(path: Path, ids: Sequence[int | str]) -> tuple[Sidecar, Tensor]:
    """Return the sidecar and the codes, uint8 [N, size], of a file.

    Args:
        ids: of the file of new vectors that it is read with, in its order.
    Raises: DataError: the file is missing, damaged, or of another kind. IntegrityError: the codes
        are of other ids, or of these in another order.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        record = json.loads(metadata[KEY])
        if record["format_version"] != FORMAT_VERSION:
            raise DataError(
                f"{path} has the format version {record['format_version']}, and this Evergram "
                f"reads {FORMAT_VERSION}; read it with the Evergram that wrote it."
            )
        digest, codes = record["ids"], tensors["codes"]
        sidecar = sidecar_of(tensors, codes, record)
        if record["content"] != content_digest(tensors):
            sidecar = None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path} cannot be read as a sidecar; give a file that write_sidecar wrote. One that "
            "'evergram vectors sidecar' wrote is for Reader.open(…, sidecars=[…])."
        ) from error
    if sidecar is None:
        raise DataError(f"{path} is damaged: its parts do not fit together; write it again.")
    if digest != _digest(ids) or len(codes) != len(ids):
        raise IntegrityError(
            f"{path} was written for other ids than these {len(ids)}, or for another order of "
            "them; read it with the file of vectors that it was written beside."
        )
    return sidecar, codes


def content_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors, their names and their shapes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def sidecar_tensors(sidecar: Sidecar) -> dict[str, Tensor]:
    """Return the tensors of a sidecar by their names in a file."""
    tensors = {"weight": sidecar.weight, "basis": sidecar.basis, "scales": sidecar.scales}
    if sidecar.offset is not None:
        tensors["offset"] = sidecar.offset
    tensors |= {"levels": sidecar.levels, "bits": sidecar.bits.to(torch.uint8)}
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}


def sidecar_of(
    tensors: Mapping[str, Tensor], codes: Tensor, record: Mapping[str, Any]
) -> Sidecar | None:
    """Return the sidecar of a file's tensors; None if these and the codes do not fit together.

    Args:
        record: `missing`, `power` and `memory`.
    Raises: KeyError: a tensor, or a part of the record, is not there.
    """
    sidecar = Sidecar(
        tensors["weight"],
        tensors.get("offset"),
        tensors["basis"],
        tensors["scales"],
        tensors["bits"].long(),
        tensors["levels"],
        float(record["missing"]),
        float(record["power"]),
        int(record["memory"]),
    )
    offset = sidecar.offset
    fits = (
        codes.dtype == torch.uint8
        and codes.dim() == sidecar.basis.dim() == sidecar.weight.dim() == 2
        and sidecar.scales.shape == sidecar.bits.shape == (sidecar.rank,)
        and bool(((sidecar.bits >= 1) & (sidecar.bits <= MOST_BITS)).all())
        and codes.shape[1] == sidecar.size
        and sidecar.levels.shape == (2 * LEVELS,)
        and sidecar.memory in TAPS
        and len(sidecar.basis) == len(sidecar.weight)
        and (offset is None or offset.shape == (len(sidecar.weight),))
        and all(bool(t.isfinite().all()) for t in sidecar_tensors(sidecar).values())
    )
    return sidecar if fits else None


def _digest(ids: Sequence[int | str]) -> str:
    """Return the SHA-256 of ids in their order; an integer and its text are one id."""
    digest = hashlib.sha256()
    for id_ in ids:
        text = str(id_).encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()
