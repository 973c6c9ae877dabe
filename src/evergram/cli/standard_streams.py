"""Stdout and stderr that never end a run: the work of a command goes on without a reader."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, Any


class _LastingFile(io.FileIO):
    """An open file descriptor; once a write fails, that and all later writes are discarded."""

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            while (written := super().write(data)) is None:
                select.select([], [self.fileno()], [])  # a pipe that does not block, and is full
            return written
        except OSError as error:
            self.error = error
            _discard(self.fileno())
            return len(data)


@contextmanager
def lasting_streams() -> Iterator[Callable[[], OSError | None]]:
    """Let no write to stdout or stderr fail in a `with` block.

    A stream may be closed (`>&-`), its reader may end (`| head -1`), and its encoding may lack a
    character, which is then written as an escape.

    Yields: a function that returns why the results could not be written on stdout, such as a full
        disk; None if they were, or if their reader has read enough.
    """
    stdout, stderr = _lasting(sys.stdout, 1), _lasting(sys.stderr, 2)

    def failure() -> OSError | None:
        stdout.flush()
        raw = getattr(getattr(stdout, "buffer", None), "raw", None)
        error: OSError | None = getattr(raw, "error", None)
        return None if error is not None and error.errno == errno.EPIPE else error

    with redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            yield failure
        finally:
            stdout.flush()
            stderr.flush()


def _lasting(stream: IO[str] | None, number: int) -> IO[str]:
    """Return a stream to write to in place of one that Python opened for a descriptor."""
    if stream is None:  # Closed: the next file to be opened would get its descriptor.
        try:
            os.fstat(number)
        except OSError:
            _discard(number)
        return Path(os.devnull).open("w", errors="backslashreplace")
    if not isinstance(stream, io.TextIOWrapper) or stream not in (sys.__stdout__, sys.__stderr__):
        return stream  # of a program that calls `main` and captures what it prints
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_LastingFile(number, "w", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _discard(number: int) -> None:
    """Make a descriptor lead to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    if null != number:
        os.dup2(null, number)
        os.close(null)
