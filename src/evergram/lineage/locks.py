"""A lineage's folder: one writer at a time, links that lead out of it, and permissions."""

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
# The parts of a lineage that has nothing to read.
EMPTY = {".lock", "versions", "embeddings"}
# The files and folders that this package reads and writes in a lineage's folder.
PARTS = (
    *("lineage.json", "consumers.json", "versions", "embeddings", "probes", "stores"),
    *("backfills", ".work", ".lock"),
)


@contextmanager
def writing(
    path: Path, where: str, elsewhere: AbstractContextManager[object], patience: float = 0
) -> Iterator[None]:
    """Hold the lock of a lineage, and that `elsewhere` of the storage that `path` is a mirror of,
    for a block; wait `patience` seconds for another process. A folder that is made for a first
    publication, and is not one, is removed again. Errors call it `where`."""
    new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        check_parts(path)
        with file_lock(path / ".lock", timeout=patience, mode=file_mode(path)), elsewhere:
            try:
                yield
            finally:
                if new and {part.name for part in path.iterdir()} <= EMPTY:
                    shutil.rmtree(path, ignore_errors=True)
    except Timeout:
        busy = f"Another process is publishing to {where} or changing it; wait, and try again."
        raise LineageError(busy) from None
    except (OSError, SafetensorError) as error:
        # An error of safetensors has the system's words in its text.
        system = error if isinstance(error, OSError) else OSError(str(error))
        reason = reason_and_remedy(system, "the lineage is as it was")
        raise LineageError(f"{where} cannot be written: {reason}.") from error


def write_record(path: Path, record: LineageRecord, remote: Remote | None = None) -> None:
    """Replace `lineage.json` by one rename, and one upload: readers see the old one or the new."""
    write_text(path / RECORD, record.to_json(), file_mode(path))
    if remote is not None:
        remote.commit()


def unchanged(path: Path, opened: LineageRecord, where: str, *, labels: bool) -> LineageRecord:
    """Return the record as it is on disk, if it is still as `opened`; with `labels`, also the
    labels and the retired versions."""
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
    """Remove folders that are not of a published version: a killed publication left them."""
    for parent in (path / "versions", path / "embeddings"):
        make_folder(parent, file_mode(path))
        for left in parent.iterdir():
            if not (left.name.isdecimal() and int(left.name) in record.versions):
                remove_tree(left)


@contextmanager
def training_claim(work: Path, lineage: str) -> Iterator[None]:
    """Claim the training of a lineage's next version in `.work`; claims within one process may be
    nested."""
    # One object for each path in a process, so that a nested claim does not wait for itself.
    lock = file_lock(work / LOCK, is_singleton=True, thread_local=False)
    made = not work.parent.exists()
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
        # A lineage that cannot be written cannot be published to either, so no claim is needed.
    try:
        yield
    finally:
        last = lock.is_locked and lock.lock_counter == 1
        if last and {path.name for path in work.iterdir()} <= {LOCK}:
            shutil.rmtree(work, ignore_errors=True)
            if made:
                with suppress(OSError):
                    work.parent.rmdir()
        if lock.is_locked:
            lock.release()


def clear_work(work: Path) -> None:
    """Remove the checkpoints of a training that is published, unless another process trains."""
    if work.is_dir():
        with suppress(LineageError), training_claim(work, str(work.parent)):
            for path in work.iterdir():
                if path.name != LOCK:
                    remove_tree(path)


def check_inside(root: Path, *paths: Path) -> None:
    """Refuse paths that symbolic links lead out of `root`, whether or not a file is there."""
    home = os.path.realpath(root)
    for path in paths:
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(home):
            where = f"leads to {real}, outside of the lineage's folder, by a symbolic link"
            raise IntegrityError(f"{path} {where}; put the files themselves in its place.")


def check_parts(root: Path) -> None:
    """Refuse a lineage with a link out of it at its top. Raises: IntegrityError."""
    check_inside(root, *(path for name in PARTS if (path := root / name).is_symlink()))


def refuse_occupied(folder: Path, name: str) -> None:
    """Refuse a folder for a new lineage (by name) that holds other files, some of which it would
    remove; hidden files and what a killed first publication left next to its lock are allowed."""
    if not folder.is_dir():
        return
    others = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    others -= {"lost+found"}  # of a disk of its own
    if (folder / ".lock").exists():  # version 0, perhaps half of it
        left = [folder / name for name in others & {"versions", "embeddings"}]
        others -= {
            p.name for p in left if all(f.name == "0" or f.name[0] == "." for f in p.iterdir())
        }
    if others:
        what = f"{folder} holds other files ({min(others)}) and no lineage"
        raise LineageError(f"{what}; give an empty folder, or a new one such as {folder / name}.")


def check_tree(root: Path, folder: Path) -> None:
    """Refuse a folder of a lineage with a link, at any depth, that leads out."""
    check_inside(root, folder)
    check_inside(root, *(path for path in folder.rglob("*") if path.is_symlink()))


def file_mode(root: Path) -> int:
    """Return the permissions that new files of a lineage get: those of its `lineage.json`. Only its
    owner reads a new lineage; `chmod -R g+rX DIR`, once, shares it with a group."""
    try:
        return stat.S_IMODE((root / "lineage.json").stat().st_mode) & 0o666
    except FileNotFoundError:
        return OWNER_ALONE
