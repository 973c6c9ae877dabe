"""Write and read a sidecar and its codes: one safetensors file beside the file of new vectors.

Tensors: `weight`, `offset` (if there is one), `basis`, `scales` (float64), `codes` (int8). The
only key of the metadata, `KEY`, is JSON: `format_version`, `left`, `power`, and `ids`: the SHA-256
of the ids in the order of the codes, since codes beside other vectors would read as nonsense.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from evergram.atomic_files import replacing
from evergram.compatibility.sidecar.sidecar import Sidecar
from evergram.errors import DataError, IntegrityError
from evergram.system_errors import reason_and_remedy

KEY = "evergram.sidecar"
FORMAT_VERSION = 1


def write_sidecar(
    path: Path,
    sidecar: Sidecar,
    codes: Tensor | npt.NDArray[np.int8],
    ids: Sequence[int | str],
) -> None:
    """Write a sidecar, whole or not at all, over an existing file.

    Args:
        codes: int8 [N, r] of `Sidecar.encode`.
        ids: of the N objects, in the order of the codes.
    Raises: DataError: there are not N ids of r codes, or the file cannot be written.
    """
    if codes.shape != (len(ids), sidecar.rank):
        raise DataError(
            f"The codes are {list(codes.shape)}, and there are {len(ids)} ids and a rank of "
            f"{sidecar.rank}; give one id for each row of codes."
        )
    tensors = {"weight": sidecar.weight, "basis": sidecar.basis, "scales": sidecar.scales}
    if sidecar.offset is not None:
        tensors["offset"] = sidecar.offset
    tensors["codes"] = torch.as_tensor(codes)
    record = {
        "format_version": FORMAT_VERSION,
        "left": sidecar.left,
        "power": sidecar.power,
        "ids": _digest(ids),
    }
    content = save({k: v.cpu().contiguous() for k, v in tensors.items()}, {KEY: json.dumps(record)})
    try:
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {reason_and_remedy(error)}.") from error


def read_sidecar(path: Path, ids: Sequence[int | str]) -> tuple[Sidecar, Tensor]:
    """Return the sidecar and the codes, int8 [N, r], of a file.

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
                f"reads {FORMAT_VERSION}; read it with the Evergram that wrote it, or a later one."
            )
        digest, codes = record["ids"], tensors.pop("codes")
        sidecar = Sidecar(
            tensors["weight"],
            tensors.get("offset"),
            tensors["basis"],
            tensors["scales"],
            float(record["left"]),
            float(record["power"]),
        )
        fits = (
            codes.dtype == torch.int8
            and codes.dim() == sidecar.basis.dim() == sidecar.weight.dim() == 2
            and codes.shape[1] == sidecar.rank
            and sidecar.scales.shape == (sidecar.rank,)
            and len(sidecar.basis) == len(sidecar.weight)
            and all(bool(t.isfinite().all()) for t in tensors.values())
        )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path} cannot be read as a sidecar; give a file that write_sidecar wrote."
        ) from error
    if not fits:
        raise DataError(f"{path} is damaged: its parts do not fit together; write it again.")
    if digest != _digest(ids) or len(codes) != len(ids):
        raise IntegrityError(
            f"{path} was written for other ids than these {len(ids)}, or for another order of "
            "them; read it with the file of vectors that it was written beside."
        )
    return sidecar, codes


def _digest(ids: Sequence[int | str]) -> str:
    """Return the SHA-256 of ids in their order; an integer and its text are one id."""
    digest = hashlib.sha256()
    for id_ in ids:
        text = str(id_).encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()
