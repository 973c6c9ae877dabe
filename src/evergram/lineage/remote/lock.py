"""One publisher at a time on storage without locks: an object that only one can create."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evergram.atomic_files import write_bytes
from evergram.errors import LineageError

NAME = "publishing.lock"


@contextmanager
def remote_lock(
    files: Any, path: str, address: str, kept: Path | None = None
) -> Iterator[Callable[[], None]]:
    """Hold `publishing.lock` of a lineage. Yields what refuses to go on once it is another's, as it
    is where a publisher slept until somebody deleted its lock.

    Two publishers cannot both hold it if the storage can create an object only where there is none,
    and its driver asks for that. Elsewhere the object is looked for, written and read back, which
    leaves a moment in which two may both hold it.

    Args:
        files, path: from `addresses.filesystem`.
        address: what to call the lineage in an error.
        kept: a file of this machine that only one process uses at a time. It has the lock's content
            as long as the lock may be there, so that this machine takes back a lock that a killed
            process or a lost connection left.
    Raises: LineageError: another process holds it; the error says who, and what to do if that
        process is dead.
    """
    place = f"{path}/{NAME}"
    mine = json.dumps({**this_process(), "mark": secrets.token_hex(8)}).encode()
    tried = False
    try:
        # A driver without the mode "create" would overwrite the lock of another process.
        holder = _content(files, place)
        if kept is not None and kept.is_file() and kept.read_bytes() == holder:
            mine, tried = holder, True
        if holder is None:
            tried = True
            if kept is not None:
                write_bytes(kept, mine)
            try:
                files.pipe_file(place, mine, mode="create")
                holder = _content(files, place)
            except Exception:
                # Each driver has its own error for an object that is there by now.
                holder = _content(files, place)
                if holder is None:
                    raise
        if holder != mine:
            raise LineageError(
                f"Another process is publishing to {address}: "
                f"{describe_process(_content(files, place))}. Wait for it "
                f"and try again; if it is dead, delete {address}/{NAME} with your storage's own "
                "tool."
            )
        yield lambda: _refuse_lost(files, place, mine, address)
    finally:
        # It may have been written, though the answer, or what was read back, did not arrive.
        if tried and _release(files, place, mine, address) and kept is not None:
            kept.unlink(missing_ok=True)


def _content(files: Any, place: str) -> bytes | None:
    try:
        return bytes(files.cat_file(place))
    except FileNotFoundError:
        return None


def _refuse_lost(files: Any, place: str, mine: bytes, address: str) -> None:
    holder = _content(files, place)
    if holder != mine:
        by = "deleted" if holder is None else f"taken by {describe_process(holder)}"
        raise LineageError(
            f"The lock of this process on {address} was {by} while it was publishing; it wrote no "
            "lineage.json and no consumers.json. Open the lineage again, and run the command again."
        )


def _release(files: Any, place: str, mine: bytes, address: str) -> bool:
    """Remove the lock if it is this process's. Returns: whether it is gone."""
    try:
        if _content(files, place) == mine:
            files.rm_file(place)
        return True
    except Exception as error:
        # The work under the lock is done, or has failed with an error of its own.
        warnings.warn(
            f"{address}/{NAME} could not be removed ({error}); the next publication from this "
            "machine does so, and before one from another it must be deleted.",
            RuntimeWarning,
            stacklevel=3,
        )
        return False


def this_process() -> dict[str, str | int]:
    """Return this process as JSON: its user, machine and number, and the time."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {"owner": user, "host": socket.gethostname(), "process": os.getpid(), "since": since}


def describe_process(content: bytes | None) -> str:
    """Return in words the process that `this_process` described."""
    try:
        read = json.loads(content or b"")
        return (
            f"{read['owner']} on {read['host']} (process {read['process']}) since {read['since']}"
        )
    except (ValueError, KeyError, TypeError):
        return "by whom cannot be read"
