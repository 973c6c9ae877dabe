"""Files of a lineage: written beside their place and renamed into it, tensors without pickle."""

from __future__ import annotations

import math
import os
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from evergram.errors import IntegrityError

# Permissions of a new lineage's files.
OWNER_ALONE = 0o600


def plain_numbers(value: Any) -> Any:
    """The same JSON with null for what could not be measured: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {k: plain_numbers(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def file_mode(root: Path) -> int:
    """The permissions of what is written in a lineage: those of its `lineage.json`.

    A new lineage is its owner's alone; whoever shares one says so once, by `chmod -R g+rX DIR`.
    """
    try:
        return stat.S_IMODE((root / "lineage.json").stat().st_mode) & 0o666
    except FileNotFoundError:
        return OWNER_ALONE


def make_folder(folder: Path, mode: int = OWNER_ALONE) -> None:
    """Make a folder, where it is not there, that may be entered by those who may read `mode`."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    _permit_folder(folder, mode)


def _permit_folder(folder: Path, mode: int) -> None:
    # In a folder that hands on its group, a folder is made with that bit, which has to stay.
    kept = stat.S_IMODE(folder.stat().st_mode) & ~0o777
    folder.chmod(kept | mode | (mode & 0o444) >> 2)


@contextmanager
def beside(folder: Path, mode: int = OWNER_ALONE) -> Iterator[Path]:
    """A folder to fill, synced and renamed into its place when all went well.

    Args:
        mode: permissions of the files in it.
    """
    part = folder.with_name(f".{folder.name}.part")
    part.mkdir(parents=True)
    try:
        _permit_folder(part, mode)
        yield part
        for path in part.iterdir():
            path.chmod(mode)
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
    remove_tree(part)
    with suppress(OSError):
        folder.rename(part)
    remove_tree(part)


def remove_tree(path: Path) -> None:
    """Remove a folder or a file; of a symbolic link the link alone. What cannot be is left."""
    if path.is_symlink() or path.is_file():
        with suppress(OSError):
            path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)


def write_text(path: Path, text: str, mode: int = OWNER_ALONE) -> None:
    """Write a text file, whole or not at all, with these permissions."""
    with replacing(path, mode) as file:
        file.write(f"{text}\n".encode())


@contextmanager
def replacing(path: Path, mode: int = OWNER_ALONE, owner: str = "") -> Iterator[IO[bytes]]:
    """A new file to write beside a path: synced and put in its place when all went well.

    What has the new file's name already, left by a killed process or laid there as a link to some
    other file, is removed and never written to.

    Args:
        mode: permissions of the file.
        owner: tells apart several processes that may do so at once, where no lock does.
    """
    part = path.with_name(f".{path.name}{owner}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ALONE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            part.chmod(mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def put(path: Path, content: bytes | None) -> None:
    """Make a file what it is elsewhere, at once and only if it differs; None removes it."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may do so at once, and several threads.
    with replacing(path, owner=f".{os.getpid()}.{threading.get_ident()}") as file:
        file.write(content)


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
