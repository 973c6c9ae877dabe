"""One publisher at a time on storage without locks: an object that only one can create."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from evergram.errors import LineageError

NAME = "publishing.lock"


@contextmanager
def remote_lock(files: Any, path: str, address: str) -> Iterator[None]:
    """Hold `publishing.lock` of a lineage.

    Two publishers cannot both hold it if the storage can create an object only where there is none,
    and its driver asks for that. Elsewhere the object is looked for, written and read back, which
    leaves a moment in which two may both hold it.

    Args:
        files, path: from `addresses.filesystem`.
        address: what to call the lineage in an error.
    Raises: LineageError: another process holds it; the error says who, and what to do if that
        process is dead.
    """
    place = f"{path}/{NAME}"
    mine = json.dumps({**this_process(), "mark": secrets.token_hex(8)}).encode()
    tried = False
    try:
        # A driver without the mode "create" would overwrite the lock of another process.
        holder = _content(files, place)
        if holder is None:
            tried = True
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
        yield
    finally:
        # It may have been written, though the answer, or what was read back, did not arrive.
        if tried:
            _release(files, place, mine, address)


def _content(files: Any, place: str) -> bytes | None:
    try:
        return bytes(files.cat_file(place))
    except FileNotFoundError:
        return None


def _release(files: Any, place: str, mine: bytes, address: str) -> None:
    try:
        if _content(files, place) == mine:
            files.rm_file(place)
    except Exception as error:
        # The work under the lock is done, or has failed with an error of its own.
        warnings.warn(
            f"{address}/{NAME} could not be removed ({error}); delete it before the next "
            "publication.",
            RuntimeWarning,
            stacklevel=3,
        )


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
