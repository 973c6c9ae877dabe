"""Tensors in safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from evergram.errors import IntegrityError


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name. Raises: IntegrityError: it cannot be read."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}.") from error
    return tensors


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors, from whichever device, to a file."""
    save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, path)
