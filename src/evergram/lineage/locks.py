"""A lineage's folder: the write lock, checks of symbolic links, and permissions."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from filelock import Timeout
from safetensors import SafetensorError

from evergram.atomic_files import OWNER_ALONE, file_lock, make_folder, remove_tree, write_text
from evergram.errors import IntegrityError, LineageError, reason_and_remedy
from evergram.lineage.record import LineageRecord, read_record
from evergram.lineage.remote import RECORD, Remote

LOCK = "training.lock"
# Contents of a lineage's folder if nothing is published.
EMPTY = {".lock", "versions", "embeddings"}
# All files and folders of this package in a lineage's folder.
PARTS = (
    "lineage.json",
    "consumers.json",
    "versions",
    "embeddings",
    "probes",
    "stores",
    "backfills",
    ".work",
    ".lock",
)


@contextmanager
def writing(
    path: Path, where: str, elsewhere: AbstractContextManager[object], patience: float = 0
) -> Iterator[None]:
    """Hold the lock of a lineage in a `with` block, waiting `patience` seconds for other processes.

    Args:
        where: the lineage's address, for errors.
        elsewhere: holds the lock of the remote storage, if `path` is its mirror.
    A folder created for a first publication is removed again if the publication fails."""
    new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        check_parts(path)
        with file_lock(path / ".lock", timeout=patience, mode=file_mode(path)), elsewhere:
            try:
                yield
            finally:
                if new and {entry.name for entry in path.iterdir()} <= EMPTY:
                    shutil.rmtree(path, ignore_errors=True)
    except Timeout:
        busy = f"Another process is publishing to {where} or changing it; wait and try again."
        raise LineageError(busy) from None
    except (OSError, SafetensorError) as error:
        # The text of a SafetensorError includes the system's message.
        system = error if isinstance(error, OSError) else OSError(str(error))
        reason = reason_and_remedy(system, "the lineage is unchanged")
        raise LineageError(f"{where} cannot be written: {reason}.") from error


def write_record(path: Path, record: LineageRecord, remote: Remote | None = None) -> None:
    """Replace `lineage.json` atomically, by one rename and one upload."""
    write_text(path / RECORD, record.to_json(), file_mode(path))
    if remote is not None:
        remote.commit()


def unchanged(path: Path, opened: LineageRecord, where: str, *, labels: bool) -> LineageRecord:
    """Return the record on disk, after checking that its versions are still those of `opened`; with
    `labels`, also check the labels and retired versions."""
    file = path / RECORD
    current = read_record(file) if file.exists() else opened.model_copy(update={"versions": []})
    same = current.versions == opened.versions and current.withdrawn == opened.withdrawn
    if labels:
        same = same and (current.labels, current.retired) == (opened.labels, opened.retired)
    if not same:
        newest = current.versions[-1] if current.versions else "none"
        what = f"has changed since it was opened (its newest version is {newest})"
        raise LineageError(f"{where} {what}; nothing was written; open it again.")
    return current


def clear_left(path: Path, record: LineageRecord) -> None:
    """Remove folders left by a killed publication, which belong to no published version."""
    for parent in (path / "versions", path / "embeddings"):
        make_folder(parent, file_mode(path))
        for folder in parent.iterdir():
            if not (folder.name.isdecimal() and int(folder.name) in record.versions):
                remove_tree(folder)


@contextmanager
def training_claim(work: Path, lineage: str) -> Iterator[None]:
    """Hold the lock for training a lineage's next version, in `.work`; reentrant in a process."""
    # One lock object per path and process, so that a nested claim does not wait for itself.
    lock = file_lock(work / LOCK, is_singleton=True, thread_local=False)
    created = not work.parent.exists()
    try:
        make_folder(work.parent)
        make_folder(work, file_mode(work.parent))
        lock.acquire(timeout=0)
    except Timeout:
        busy = f"Another process is training the next version of {lineage}; wait, or stop one."
        raise LineageError(busy) from None
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOLCK):
            reason = reason_and_remedy(error)
            raise LineageError(f"{lineage} cannot be trained: {reason}.") from error
        # If the folder is not writable, nobody can publish, so no lock is needed.
    try:
        yield
    finally:
        last = lock.is_locked and lock.lock_counter == 1
        if last and {path.name for path in work.iterdir()} <= {LOCK}:
            shutil.rmtree(work, ignore_errors=True)
            if created:
                with suppress(OSError):
                    work.parent.rmdir()
        if lock.is_locked:
            lock.release()


def clear_work(work: Path) -> None:
    """Remove the checkpoints of a published run, unless another process is training."""
    if work.is_dir():
        with suppress(LineageError), training_claim(work, str(work.parent)):
            for path in work.iterdir():
                if path.name != LOCK:
                    remove_tree(path)


def check_inside(root: Path, *paths: Path) -> None:
    """Refuse paths, existing or not, that lead out of `root` by a symbolic link."""
    home = os.path.realpath(root)
    for path in paths:
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(home):
            where = f"leads to {real}, outside of the lineage's folder, by a symbolic link"
            raise IntegrityError(f"{path} {where}; replace the link by the files.")


def check_parts(root: Path) -> None:
    """Refuse a lineage whose top-level entries link out of it. Raises: IntegrityError."""
    check_inside(root, *(path for name in PARTS if (path := root / name).is_symlink()))


def refuse_occupied(folder: Path, name: str) -> None:
    """Refuse a folder for a new lineage that has other files, some of which publication would
    remove. Hidden files, and files left by a killed first publication, are allowed."""
    if not folder.is_dir():
        return
    others = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    others -= {"lost+found"}  # if the folder is a mounted disk
    if (folder / ".lock").exists():  # a publication of version 0 was killed
        left = [folder / name for name in others & {"versions", "embeddings"}]
        others -= {
            p.name for p in left if all(f.name == "0" or f.name[0] == "." for f in p.iterdir())
        }
    if others:
        what = f"{folder} has other files ({min(others)}), but no lineage"
        raise LineageError(f"{what}; give an empty folder, or a new one such as {folder / name}.")


def check_tree(root: Path, folder: Path) -> None:
    """Refuse a lineage's folder with a symbolic link, at any depth, that leads out of it."""
    check_inside(root, folder)
    check_inside(root, *(path for path in folder.rglob("*") if path.is_symlink()))


def file_mode(root: Path) -> int:
    """Return the permissions of new files in a lineage: those of its `lineage.json`. A new lineage
    is readable only for its owner; `chmod -R g+rX DIR` shares it with a group for good."""
    try:
        return stat.S_IMODE((root / "lineage.json").stat().st_mode) & 0o666
    except FileNotFoundError:
        return OWNER_ALONE
