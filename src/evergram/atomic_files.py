"""Write files and folders atomically and durably; and file locks.

Everything is written to a temporary path next to the target, `.NAME.part`. Then `commit` syncs it,
renames it, and syncs the parent folder. If the process is killed or the machine loses power, either
the old or the new file is there.
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

OWNER_ALONE = 0o600  # permissions of a file that only its owner may read


def part_of(path: Path, owner: str = "") -> Path:
    """Return the temporary path next to `path`. If several writers may write at the same time,
    `owner` is a suffix unique to each."""
    return path.with_name(f".{path.name}{owner}.part")


def commit(part: Path, path: Path, *, sync_parent: bool = True) -> None:
    """Sync a temporary file or folder, and rename it to `path`. Set `sync_parent` to False if you
    commit several files to a folder and then call `sync` for that folder."""
    sync(part)
    part.replace(path)
    if sync_parent:
        sync(path.parent)


def sync(path: Path) -> None:
    """Sync a file's bytes, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, mode: int | None = None, owner: str = "") -> Iterator[IO[bytes]]:
    """Yield a new file to write, which replaces `path` if the block ends without an error.

    A file or link that already exists at the temporary path is removed, never written to.

    Args:
        mode: permissions of the file; None uses the umask.
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
        # Some errors, such as a full disk, do not name the file.
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replacing_path(path: Path, owner: str = "") -> Iterator[Path]:
    """Like `replacing`, but yield a path, for libraries that open files themselves. If nothing is
    written to it, nothing is replaced."""
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
    """Yield a temporary folder to fill, which becomes `folder` if the block ends without an error.

    Args:
        folder: must be empty or not exist.
        mode: permissions of the files in it; None uses the umask.
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
    """Replace `folder`, which may exist, by another folder, whose files are synced. The old folder
    is renamed to `displaced(folder)` for a short time. If the process is killed then,
    `restore_displaced` undoes it."""
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
    """Return the temporary name of a file or folder while it is being replaced."""
    return path.with_name(f".{path.name}.old")


def restore_displaced(folder: Path) -> None:
    """Undo a `replace_folder` that was killed."""
    old = displaced(folder)
    if old.is_dir() and not folder.exists():
        old.rename(folder)
    remove_tree(old)


def write_bytes(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file atomically, see `replacing`."""
    with replacing(path, mode) as file:
        file.write(content)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically, and create its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Write text and a final line break atomically, as UTF-8."""
    write_bytes(path, f"{text}\n".encode(), mode)


def mirror_content(path: Path, content: bytes | None) -> None:
    """Write this content unless the file has it already; None removes the file. New files are
    readable only for their owner. Safe for concurrent processes and threads."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, OWNER_ALONE, owner=f".{os.getpid()}.{threading.get_ident()}") as file:
        file.write(content)


def make_folder(folder: Path, mode: int = OWNER_ALONE) -> None:
    """Create a folder, unless it exists, for the users who may read files of this mode."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    permit_folder(folder, mode)


def permit_folder(folder: Path, mode: int) -> None:
    """Let users enter a folder if they may read files of this mode."""
    # Keep the setgid bit, which a folder may have inherited from its parent.
    special_bits = stat.S_IMODE(folder.stat().st_mode) & ~0o777
    folder.chmod(special_bits | mode | (mode & 0o444) >> 2)


def try_writing(folder: Path) -> None:
    """Raise an OSError if no file can be written into a folder, which may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    with tempfile.TemporaryFile(dir=folder):
        pass


def remove_folder(folder: Path) -> None:
    """Remove a folder atomically: rename it, then delete its files."""
    part = part_of(folder, ".removed")
    remove_tree(part)
    with suppress(OSError):
        folder.rename(part)
    remove_tree(part)


def remove_tree(path: Path) -> None:
    """Remove a folder, a file, or a symbolic link (not its target); ignore errors."""
    if path.is_symlink() or path.is_file():
        with suppress(OSError):
            path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def replacing_group(main: Path, *beside: Path) -> Iterator[dict[Path, Path]]:
    """Yield a temporary path for each file, by its path; replace all files together if the block
    ends without an error. Files of `beside` that were not written are removed.

    All new files are synced first. If there are several, the old files are then renamed, the main
    file first, and the new main file is put in place last. So a killed process leaves either the
    old files, the new files, or no main file, with the old one at `displaced(main)`. An error
    restores the old files.
    """
    parts = {path: part_of(path) for path in (main, *beside)}
    moved, placed = list[Path](), list[Path]()
    for part in parts.values():  # left by a killed process
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
                moved.append(path)
                sync(main.parent)
            for path in reversed(parts):
                if parts[path].exists():
                    parts[path].replace(path)
                    placed.append(path)
                    sync(main.parent)
    except BaseException:
        for path in reversed(placed):
            path.unlink()
        for path in reversed(moved):  # the main file last
            displaced(path).replace(path)
        raise
    finally:
        for part in parts.values():
            with suppress(OSError):
                part.unlink(missing_ok=True)
    for path in parts:
        with suppress(OSError):
            displaced(path).unlink(missing_ok=True)


# Without `fallback_to_soft=False`, on file systems without locks, filelock would use a lock file
# that a killed process never removes.
file_lock: partial[filelock.FileLock] = partial(filelock.FileLock, fallback_to_soft=False)
