"""Files and folders that appear whole or not at all, by one rule of syncing; and locks.

Everything is written beside its place, as `.NAME.part`, and then put in its place by `commit`: its
bytes are synced, it is renamed, and the folder around it is synced. A process that is killed at any
moment, or a machine that loses its power, leaves the old file or the new one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import filelock

# Of Linux's renameat2: names are relative to the current folder; and exchange them.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
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


def exchange_folders(new: Path, folder: Path) -> None:
    """Put a folder, whose files are synced, in the place of another, which it takes the place of.

    On Linux that is one step of the kernel. Where it is none, the old folder is renamed to
    `displaced(folder)` for a moment; a process that is killed in it leaves that name, and
    `restore_displaced` undoes it.
    """
    if not _exchange(new, folder):
        old = displaced(folder)
        remove_tree(old)
        folder.rename(old)
        new.rename(folder)
        old.rename(new)
    sync(folder.parent)


def displaced(folder: Path) -> Path:
    """Return the name of a folder while another takes its place."""
    return folder.with_name(f".{folder.name}.old")


def restore_displaced(folder: Path) -> None:
    """Put a folder back that a killed process took away to put another in its place."""
    old = displaced(folder)
    if old.is_dir() and not folder.exists():
        old.rename(folder)
    remove_tree(old)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; return False where the system has no such step."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    names = (os.fsencode(path.absolute()) for path in (one, other))
    first, second = names
    return bool(call(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE) == 0)


def write_bytes(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file, whole or not at all.

    Args:
        mode: permissions of the file; None leaves them to the umask.
    """
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
    read a new one.

    Several processes and threads may do so at once.
    """
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
    """Find out whether files can be written into a folder, which perhaps is not there yet.

    Raises: OSError: they cannot.
    """
    while not folder.exists():
        folder = folder.parent
    with tempfile.TemporaryFile(dir=folder):
        pass


def remove_folder(folder: Path) -> None:
    """Remove a folder at once: rename it to a name that nobody reads, then delete its files.

    So what a killed process leaves is never taken for the whole folder.
    """
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
    replaces the files together.

    All of it is synced before the first file is replaced, and the main file is the first that goes
    and the last that comes: a process that is killed at any moment leaves the old files, the new
    ones, or no main file, and then the old one as `displaced(main)`. An error leaves the old files.

    Args:
        beside: a file is removed if nothing was written for it, and stays as it is if the block
            takes it out of the dictionary.
    """
    parts = {path: part_of(path) for path in (main, *beside)}
    every = list(parts.values())
    for part in every:
        part.unlink(missing_ok=True)
    try:
        yield parts
        for part in parts.values():
            if part.exists():
                sync(part)
        changed = {p: part for p, part in parts.items() if part.exists() or p.exists()}
        if list(changed) == [main]:
            changed[main].replace(main)
        else:
            _replace_together(main, changed)
        sync(main.parent)
    finally:
        for part in every:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _replace_together(main: Path, parts: dict[Path, Path]) -> None:
    """Put each part, if there is one, in the place of a file; the main file is the first."""
    old = {path: displaced(path) for path in parts}
    moved: list[Path] = []
    for place in old.values():  # of a killed process
        place.unlink(missing_ok=True)
    try:
        for path in parts:
            with suppress(FileNotFoundError):
                path.replace(old[path])
            moved.append(path)
            if path == main:
                sync(main.parent)
        for path in reversed(parts):
            if path == main:
                sync(main.parent)
            with suppress(FileNotFoundError):
                parts[path].replace(path)
    except BaseException:
        # The main file comes back only after all others have.
        with suppress(OSError):
            for path in reversed(moved):
                old[path].replace(path) if old[path].exists() else path.unlink(missing_ok=True)
        raise
    for place in old.values():
        with suppress(OSError):
            place.unlink(missing_ok=True)


class FileLock(filelock.FileLock):
    """filelock's lock, which says where the file system has no locks."""

    def acquire(self, *args: Any, **options: Any) -> Any:
        """Acquire the lock. Raises: Timeout: another process holds it. OSError: it cannot be."""
        try:
            return super().acquire(*args, **options)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOLCK):
                raise
            # The system says "Function not implemented".
            why = "this file system has no locks"
            raise OSError(error.errno, why, self.lock_file) from error


# Without locks the library by itself would wait for a file that nobody removes, as if another
# process held the lock.
file_lock: partial[FileLock] = partial(FileLock, fallback_to_soft=False)
