"""Folders of files that are derived from prepared data, and may be removed at any time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from evergram.atomic_files import new_folder, remove_tree
from evergram.errors import DataError
from evergram.file_lock import file_lock

LOCK = ".lock"
Read = TypeVar("Read")
log: logging.Logger = logging.getLogger(__name__)


def derived_folder(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return a folder of derived files, written if it is not there.

    One process writes at a time; another one that needs the same folder waits, and reads it.

    Args:
        folder: its place; it appears there whole or not at all.
        write: fills a folder beside that place.
    Raises: DataError: it cannot be written, as the disk is full or may not be written to.
    """
    if folder.is_dir():
        return folder
    with _writing(folder):
        if not folder.is_dir():
            with new_folder(folder) as part:
                write(part)
    return folder


def read_derived(folder: Path, write: Callable[[Path], None], read: Callable[[Path], Read]) -> Read:
    """Return what a folder of derived files has; a damaged one is removed and written anew.

    Args:
        folder, write: as of `derived_folder`.
        read: reads the folder, and raises DataError if it is damaged.
    Raises: DataError: as of `derived_folder`, or by `write`, or by `read` of what was just written.
    """
    derived_folder(folder, write)
    try:
        return read(folder)
    except DataError:
        pass
    with _writing(folder):
        try:
            return read(folder)  # another process may have written it anew
        except DataError as error:
            problem = str(error).partition(";")[0]
            log.warning("Files beside the prepared data are written anew: %s.", problem)
        remove_tree(folder)
        with new_folder(folder) as part:
            write(part)
        return read(folder)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder around `folder`. Raises: DataError: as of `derived_folder`."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(folder.parent / LOCK):
            yield
    except OSError as error:
        why = error.strerror or str(error).rstrip(".")
        raise DataError(
            f"What training needs beside the prepared data cannot be written in {folder.parent}: "
            f"{why}; make room or permit writing there, or copy the prepared folder to a place "
            "that has both."
        ) from error


def remove_others(folder: Path) -> None:
    """Remove the folders beside `folder`, which are of data as they were before.

    A process that has opened files there keeps them until it ends.
    """
    if not folder.parent.is_dir():
        return
    for other in folder.parent.iterdir():
        if other != folder:
            remove_tree(other)
