"""The message and exit code of each error, and output streams whose failures do not end a run."""

from __future__ import annotations

import errno
import io
import logging
import os
import platform
import re
import select
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from evergram.cli.app import commands_of, options_of
from evergram.collectives import is_first_process
from evergram.errors import EvergramError, reason_and_remedy
from evergram.log_lines import LineFormatter, LogFormat, line_of, log_format
from evergram.validation import sentence_of

# Exit codes: bad input; an unexpected error (EX_SOFTWARE in BSD's sysexits.h); Ctrl-C; SIGTERM.
REFUSED, UNFORESEEN, INTERRUPTED, TERMINATED = 2, 70, 130, 143
# Maximum characters of an unexpected error in the message.
SHOWN = 200
# Messages of torch, NumPy and Arrow for a lack of memory.
_MEMORY = re.compile(
    r"(?i)can't allocate memory|not enough memory|out of memory|unable to allocate|malloc of size"
    r"|realloc of size|storage size calculation overflowed"
)
# An option in brackets, which follows the name of a recipe's key or of a Python argument.
_OPTION = re.compile(r" \((--[a-z][\w-]*)[^()]*\)")


class _WarningPrinter(logging.Handler):
    """Writes each warning as a line to the current `sys.stderr`."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(with_own_options(self.format(record)) + "\n")


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Print the library's warnings in a `with` block; with JSON, also those of other libraries. Not
    for `serve`, which has a log."""
    as_json = log_format() is LogFormat.json
    logger = logging.getLogger(None if as_json else "evergram")
    handler = _WarningPrinter(logging.WARNING)
    handler.setFormatter(LineFormatter("warning: %(message)s", "warning"))
    serves = [each.name for each in commands_of(sys.argv[1:])][1:] == ["serve"]
    if is_first_process() and not serves:
        logger.addHandler(handler)
        logging.captureWarnings(as_json)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logging.captureWarnings(False)


def sentence_and_code(error: Exception) -> tuple[str, int]:
    """Return an error's message and exit code; the message is "" if help was printed."""
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # Path.resolve
        error = OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(error).split("'")[1])
    text = without_passwords(" ".join(f"{type(error).__name__}: {error}".split()))
    summary = f"{text[:SHOWN]}…" if len(text) > SHOWN else text
    out_of_memory = isinstance(error, RuntimeError | ValueError) and _MEMORY.search(str(error))
    if isinstance(error, EvergramError):
        sentence = with_own_options(str(error))
    elif hasattr(error, "format_message"):  # a usage error of typer
        sentence = _usage(error)
    elif isinstance(error, OSError):
        files = [str(name) for name in (error.filename, error.filename2) if name is not None]
        sentence = f"{' and '.join(files) or 'a file'}: {reason_and_remedy(error)}."
    elif isinstance(error, MemoryError) or out_of_memory:
        todo = "use a smaller model.dim, smaller batches or less data"
        sentence = f"There is not enough memory ({summary}); {todo}."
    else:
        return f"Unexpected error, a bug in Evergram ({summary}); {_log(error)}", UNFORESEEN
    # Escape control characters: names may have line breaks.
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda sign: repr(sign[0])[1:-1], sentence), REFUSED


def with_own_options(sentence: str) -> str:
    """Remove bracketed options that the current command does not have from a message."""
    options = options_of(sys.argv[1:])
    return _OPTION.sub(lambda match: match[0] if match[1] in options else "", sentence)


def _usage(error: Any) -> str:
    """Return the message for a wrong command line; for an empty one, print help and return ""."""
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        # If Rich has printed the help already, this is empty.
        sys.stdout.write(error.format_message())
        return ""
    problem = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error.__cause__, ValidationError):
        names = getattr(getattr(error, "param", None), "opts", None) or ["it"]
        problem = sentence_of(error.__cause__, name=names[-1]).rstrip(".")
    command = "evergram" if context is None else context.command_path
    return f"{problem}; see '{command} --help'."


def without_passwords(text: str) -> str:
    """Replace the passwords in a text's addresses by "…"."""
    return re.sub(r"(://[^\s:/@]*):[^\s/]+@", r"\1:…@", text)


def _log(error: Exception) -> str:
    """Write the details of an error to a file. Returns: a clause that names the file."""
    about = f"evergram {version('evergram')}, Python {platform.python_version()}"
    lines = [f"{about}, {platform.platform()}", " ".join(sys.argv), ""]
    details = without_passwords("\n".join([*lines, *traceback.format_exception(error)]))
    try:  # mkstemp's file is readable only for its owner: it may have paths and ids
        descriptor, path = tempfile.mkstemp(".log", "evergram-")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(details)
    except OSError as log_error:
        return f"the log could not be written ({log_error.strerror}); the details are:\n{details}"
    return f"please report it with the details in {path}."


def error_line(sentence: str, code: int = REFUSED) -> str:
    """Return the line that reports an error."""
    prefix = "error" if is_first_process() else "error in a process that is not the first"
    return line_of("error", sentence, level="error", before=f"{prefix}: ", exit_code=code) + "\n"


class _LastingFile(io.FileIO):
    """A file descriptor that discards all data from the first failed write on."""

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            while (written := super().write(data)) is None:
                select.select([], [self.fileno()], [])  # wait for a full, non-blocking pipe
            return written
        except OSError as error:
            self.error = error
            _discard(self.fileno())
            return len(data)


@contextmanager
def lasting_streams() -> Iterator[Callable[[], OSError | None]]:
    """Prevent failures of writes to stdout and stderr in a `with` block: the stream may be closed
    (`>&-`), its reader may exit (`| head -1`), or its encoding may lack a character (then escaped).

    Yields: a function that returns the error of writing to stdout, such as a full disk; None if
        there was none, or if the reader has exited.
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
    """Return a stream that replaces Python's stream for a file descriptor."""
    if stream is None:  # closed; occupy its descriptor, or the next opened file would get it
        try:
            os.fstat(number)
        except OSError:
            _discard(number)
        return Path(os.devnull).open("w", errors="backslashreplace")
    if not isinstance(stream, io.TextIOWrapper) or stream not in (sys.__stdout__, sys.__stderr__):
        return stream  # the caller of `main` has replaced it to capture the output
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_LastingFile(number, "w", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _discard(number: int) -> None:
    """Redirect a file descriptor to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    if null != number:
        os.dup2(null, number)
        os.close(null)
