"""Write a prepared folder whole or not at all, one writer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import Timeout

from evergram.atomic_files import (
    commit,
    exchange_folders,
    part_of,
    remove_tree,
    restore_displaced,
    sync,
)
from evergram.data.prepared.prepared_record import NAME
from evergram.errors import DataError
from evergram.file_lock import file_lock
from evergram.system_errors import reason_and_remedy


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Hold the lock of a prepared folder, and remove what a killed run left beside it.

    Raises: DataError: another process holds it, or the folder around it cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        path = out.with_name(f".{out.name}.lock")
        path.open("ab").close()  # the lock waits where no file can be made
        lock = file_lock(path, timeout=0)
        lock.acquire()
    except Timeout:
        raise DataError(f"Another process is preparing {out}; wait for it and try again.") from None
    except OSError as error:
        raise _unwritable(out, error) from error
    try:
        restore_displaced(out)
        remove_tree(part_of(out))
        yield
    finally:
        lock.release()


def check_place(out: Path, *, append: bool, overwrite: bool) -> None:
    """Refuse to write over something, or to append to nothing. Raises: DataError."""
    if append and overwrite:
        raise DataError("append and overwrite (--append, --overwrite) exclude each other.")
    if append:
        return
    if out.is_file() or out.is_symlink():
        raise DataError(f"{out} is a file or a link; name a new folder.")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / NAME).is_file():
        raise DataError(f"{out} holds other files and is no prepared corpus; name a new folder.")
    if not overwrite:
        raise DataError(
            f"{out} is a prepared corpus already; --append adds a new part to it, --overwrite "
            "replaces it."
        )


@contextmanager
def new_content(out: Path) -> Iterator[Path]:
    """Yield a folder to fill, which takes the place of `out` when the block ends without an error.

    Raises: DataError: something cannot be written, as the disk is full.
    """
    part = part_of(out)
    try:
        part.mkdir(parents=True)
        yield part
        for path in (*part.rglob("*"), part):
            sync(path)
        if out.exists():
            exchange_folders(part, out)
        else:
            commit(part, out)
    except OSError as error:
        raise _unwritable(out, error) from error
    finally:
        remove_tree(part)


def _unwritable(out: Path, error: OSError) -> DataError:
    return DataError(f"{out} cannot be written: {reason_and_remedy(error, 'it is as it was')}.")
