"""Files of a lineage: written beside their place and renamed into it, tensors without pickle."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from evergram.errors import IntegrityError


def plain_numbers(value: Any) -> Any:
    """The same JSON with null for what could not be measured: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {k: plain_numbers(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def beside(folder: Path) -> Iterator[Path]:
    """A folder to fill, synced and renamed into its place when all went well."""
    part = folder.with_name(f".{folder.name}.part")
    part.mkdir(parents=True)
    try:
        yield part
        for path in part.iterdir():
            sync(path)
        sync(part)
        part.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove(folder: Path) -> None:
    """Take a folder away at once: under a name that nobody reads, then file by file. Whatever a
    killed process left of it is never taken for the whole."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with suppress(OSError):
        folder.rename(part)
    shutil.rmtree(part, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text + "\n")
    sync(part)
    part.replace(path)
    sync(path.parent)


def put(path: Path, content: bytes | None) -> None:
    """Make a file what it is elsewhere, at once and only if it differs; None removes it."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may do so at once.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    sync(part)
    part.replace(path)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}.") from error
    return tensors


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, path)
