"""One publisher at a time on a filesystem that knows no locks: a file that only one can create."""

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

    Where the storage creates an object only if there is none, and its driver asks for that, two
    publishers cannot both hold it; elsewhere the lock is looked for, written and read back.

    Args:
        files, path: what `addresses.filesystem` gave.
    Raises: LineageError: another process holds it; who, and what to do if that is dead, is said.
    """
    place = f"{path}/{NAME}"
    mine = json.dumps({**this_process(), "mark": secrets.token_hex(8)}).encode()
    held = False
    try:
        # A driver that does not know "create" would overwrite another's.
        found = _content(files, place)
        if found is None:
            try:
                files.pipe_file(place, mine, mode="create")
                found = _content(files, place)
            except Exception:
                # Each driver has an error of its own for a file that is there by now.
                found = _content(files, place)
                if found is None:
                    raise
        held = found == mine
        if not held:
            raise LineageError(
                f"Another process is publishing to {address}: "
                f"{said_by(_content(files, place))}. Wait for it "
                f"and try again; if it is dead, delete {address}/{NAME} with your storage's own "
                "tool."
            )
        yield
    finally:
        if held:
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
        # What was done under the lock is done, or has failed with an error of its own.
        warnings.warn(
            f"{address}/{NAME} could not be removed ({error}); delete it before the next "
            "publication.",
            RuntimeWarning,
            stacklevel=3,
        )


def this_process() -> dict[str, str | int]:
    """Who holds what this process holds, as JSON."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {"owner": user, "host": socket.gethostname(), "process": os.getpid(), "since": since}


def said_by(content: bytes | None) -> str:
    """Who wrote `this_process`, in words."""
    try:
        read = json.loads(content or b"")
        return (
            f"{read['owner']} on {read['host']} (process {read['process']}) since {read['since']}"
        )
    except (ValueError, KeyError, TypeError):
        return "by whom cannot be read"
