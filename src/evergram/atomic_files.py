"""Files and folders that appear whole or not at all, by one rule of syncing; and locks.

Everything is written beside its place, as `.NAME.part`, and then put in its place by `commit`: its
bytes are synced, it is renamed, and the folder around it is synced. A process that is killed at any
moment, or a machine that loses its power, leaves the old file or the new one.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

import filelock

# Permissions of a file that only its owner may read.
OWNER_ALONE = 0o600


def part_of(path: Path, owner: str = "") -> Path:
    """Return the path beside `path` at which it is written.

    Args:
        owner: a part of the name that is unique to the writer, if several may write at once.
    """
    return path.with_name(f".{path.name}{owner}.part")


def commit(part: Path, path: Path, *, sync_parent: bool = True) -> None:
    """Sync a file or a folder that was filled beside its place, and rename it into its place.

    Args:
        sync_parent: False for a caller that puts several files into one folder, and then syncs that
            folder once, by `sync`.
    """
    sync(part)
    part.replace(path)
    if sync_parent:
        sync(path.parent)


def sync(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, mode: int | None = None, owner: str = "") -> Iterator[IO[bytes]]:
    """Yield a new file to write, which replaces `path` when the block ends without an error.

    Whatever is at the new file's own path, left by a killed process or put there as a link to
    another file, is removed and never written to.

    Args:
        mode: permissions of the file; None leaves them to the umask.
        owner: see `part_of`.
    """
    part = part_of(path, owner)
    part.unlink(missing_ok=True)
    new = 0o666 if mode is None else OWNER_ALONE
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, new)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                part.chmod(mode)
            yield file
        commit(part, path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        # Of a full disk, say, the system does not name the file.
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replacing_path(path: Path, owner: str = "") -> Iterator[Path]:
    """Yield a path for a library that opens its files itself; what it writes there replaces `path`
    when the block ends without an error. If it writes nothing, nothing is replaced.

    Args:
        owner: see `part_of`.
    """
    part = part_of(path, owner)
    part.unlink(missing_ok=True)
    try:
        yield part
        if part.exists():
            commit(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def new_folder(folder: Path, mode: int | None = None) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `folder` when the block ends without an error.

    Args:
        folder: must not exist, or be empty; what a killed process left beside it is removed.
        mode: permissions of the files in it; None leaves them to the umask.
    """
    part = part_of(folder)
    remove_tree(part)
    part.mkdir(parents=True)
    try:
        if mode is not None:
            permit_folder(part, mode)
        yield part
        for path in part.rglob("*"):
            if mode is not None:
                permit_folder(path, mode) if path.is_dir() else path.chmod(mode)
            sync(path)
        commit(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def replace_folder(new: Path, folder: Path) -> None:
    """Put a folder, whose files are synced, in the place of another, which may be there.

    The old one is renamed to `displaced(folder)` for a moment; a process that is killed in it
    leaves that name, and `restore_displaced` undoes it.
    """
    remove_tree(displaced(folder))
    if folder.exists():
        folder.rename(displaced(folder))
    try:
        new.rename(folder)
    except BaseException:
        restore_displaced(folder)
        raise
    sync(folder.parent)
    remove_tree(displaced(folder))


def displaced(path: Path) -> Path:
    """Return the name of a file or folder while another takes its place."""
    return path.with_name(f".{path.name}.old")


def restore_displaced(folder: Path) -> None:
    """Put a folder back that a killed process took away to put another in its place."""
    old = displaced(folder)
    if old.is_dir() and not folder.exists():
        old.rename(folder)
    remove_tree(old)


def write_bytes(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file, whole or not at all, see `replacing`."""
    with replacing(path, mode) as file:
        file.write(content)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, after making the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Write a line or more of text, as UTF-8 with a line break at the end, whole or not at all."""
    write_bytes(path, f"{text}\n".encode(), mode)


def mirror_content(path: Path, content: bytes | None) -> None:
    """Give a file this content, unless it has it already; None removes the file. Only its owner may
    read a new one. Several processes and threads may do so at once."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, OWNER_ALONE, owner=f".{os.getpid()}.{threading.get_ident()}") as file:
        file.write(content)


def make_folder(folder: Path, mode: int = OWNER_ALONE) -> None:
    """Make a folder, if there is none, for the users who may read a file of this mode."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    permit_folder(folder, mode)


def permit_folder(folder: Path, mode: int) -> None:
    """Let users enter a folder if they may read a file of this mode."""
    # Keep the setgid bit, which a folder inherits from one that hands on its group.
    kept = stat.S_IMODE(folder.stat().st_mode) & ~0o777
    folder.chmod(kept | mode | (mode & 0o444) >> 2)


def try_writing(folder: Path) -> None:
    """Raise an OSError if no file can be written into a folder, which perhaps is not there yet."""
    while not folder.exists():
        folder = folder.parent
    with tempfile.TemporaryFile(dir=folder):
        pass


def remove_folder(folder: Path) -> None:
    """Remove a folder at once: rename it to a name that nobody reads, then delete its files."""
    part = part_of(folder, ".removed")
    remove_tree(part)
    with suppress(OSError):
        folder.rename(part)
    remove_tree(part)


def remove_tree(path: Path) -> None:
    """Remove a folder, a file, or a symbolic link but not its target; ignore what cannot be
    removed."""
    if path.is_symlink() or path.is_file():
        with suppress(OSError):
            path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def replacing_group(main: Path, *beside: Path) -> Iterator[dict[Path, Path]]:
    """Yield a path to write to for each file; what is there when the block ends without an error
    replaces the files together, and a file beside the main one goes if nothing is there.

    All of it is synced before the first file is replaced. Where there are several, the old ones are
    taken away first, the main file before the others, and the new main file comes last: a process
    that is killed leaves the old files, the new ones, or no main file and the old one as
    `displaced(main)`. An error leaves the old files.
    """
    parts = {path: part_of(path) for path in (main, *beside)}
    taken, placed = list[Path](), list[Path]()
    for part in parts.values():  # of a killed process
        part.unlink(missing_ok=True)
    try:
        yield parts
        for part in parts.values():
            if part.exists():
                sync(part)
        if not any(path.exists() or parts[path].exists() for path in beside):
            commit(parts[main], main)
        else:
            for path in filter(Path.exists, parts):
                path.replace(displaced(path))
                taken.append(path)
                sync(main.parent)
            for path in reversed(parts):
                if parts[path].exists():
                    parts[path].replace(path)
                    placed.append(path)
                    sync(main.parent)
    except BaseException:
        for path in reversed(placed):
            path.unlink()
        for path in reversed(taken):  # the main file comes back after the others
            displaced(path).replace(path)
        raise
    finally:
        for part in parts.values():
            with suppress(OSError):
                part.unlink(missing_ok=True)
    for path in parts:
        with suppress(OSError):
            displaced(path).unlink(missing_ok=True)


# Without locks filelock by itself would wait for a file that nobody removes, as if another process
# held the lock.
file_lock: partial[filelock.FileLock] = partial(filelock.FileLock, fallback_to_soft=False)
