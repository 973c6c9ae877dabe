"""One training at a time: two upgrades of one lineage would train for hours, and one would lose."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from evergram.atomic_files import make_folder, write_text
from evergram.errors import LineageError
from evergram.lineage.disk.permissions import file_mode
from evergram.lineage.remote.lock import said_by, this_process

LOCK, OWNER = "training.lock", "training.json"


@contextmanager
def training_claim(work: Path, lineage: str) -> Iterator[None]:
    """Hold the folder in which a lineage's next version is trained; a nested claim of the same
    process is no other.

    Args:
        work: `.work` of the lineage.
        lineage: what to call it in an error.
    Raises: LineageError: another process is training; who, and since when, is said.
    """
    lock, made = _lock(work), not work.parent.exists()
    try:
        make_folder(work.parent)
        make_folder(work, file_mode(work.parent))
        lock.acquire(timeout=0)
    except Timeout:
        raise LineageError(
            f"Another process is training the next version of {lineage}: {_owner(work)}. Only one "
            "can be published after the present version; wait until it is, or stop one of them."
        ) from None
    except OSError:
        # Where the lineage cannot be written, nothing is kept and nobody can publish.
        pass
    owner = work / OWNER
    try:
        if lock.is_locked and lock.lock_counter == 1:
            with suppress(OSError):
                write_text(owner, json.dumps(this_process()), file_mode(work.parent))
        yield
    finally:
        if lock.is_locked and lock.lock_counter == 1:
            owner.unlink(missing_ok=True)
            if _is_empty(work):
                shutil.rmtree(work, ignore_errors=True)
                if made:
                    with suppress(OSError):
                        work.parent.rmdir()
        if lock.is_locked:
            lock.release()


def clear_work(work: Path) -> None:
    """Remove what training has kept, once it is published; another process's is left alone."""
    if not work.is_dir():
        return
    with suppress(OSError), _lock(work).acquire(timeout=0):  # filelock's Timeout is an OSError
        shutil.rmtree(work, ignore_errors=True)


def _lock(work: Path) -> FileLock:
    # One object a path and process, so that a claim within a claim does not wait for itself.
    return FileLock(work / LOCK, is_singleton=True, thread_local=False)


def _is_empty(work: Path) -> bool:
    return not {path.name for path in work.iterdir()} - {LOCK}


def _owner(work: Path) -> str:
    try:
        return said_by((work / OWNER).read_bytes())
    except OSError:
        return said_by(None)
