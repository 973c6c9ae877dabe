"""The sentence and the exit code of each error, and streams that never end a run."""

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

# Bad input or something impossible; an error that nobody foresaw, as in BSD's sysexits.h; Ctrl-C.
REFUSED, UNFORESEEN, INTERRUPTED = 2, 70, 130
# Characters of an unforeseen error that the sentence repeats.
SHOWN = 200
# The words of torch, NumPy and Arrow for a lack of memory.
_MEMORY = re.compile(
    r"(?i)can't allocate memory|not enough memory|out of memory|unable to allocate|malloc of size"
    r"|realloc of size|storage size calculation overflowed"
)
# An option in brackets after the name that a recipe or Python has for it.
_OPTION = re.compile(r" \((--[a-z][\w-]*)[^()]*\)")


class _WarningPrinter(logging.Handler):
    """Writes each warning as a line to what `sys.stderr` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(with_own_options(self.format(record)) + "\n")


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Print the library's warnings for a `with` block, as JSON those of all other libraries, too;
    `serve` has a log of its own."""
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
    """Return an error as one sentence, and the exit code; "" where help was printed."""
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # Path.resolve
        error = OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(error).split("'")[1])
    text = without_passwords(" ".join(f"{type(error).__name__}: {error}".split()))
    summary = f"{text[:SHOWN]}…" if len(text) > SHOWN else text
    short_of_memory = isinstance(error, RuntimeError | ValueError) and _MEMORY.search(str(error))
    if isinstance(error, EvergramError):
        sentence = with_own_options(str(error))
    elif hasattr(error, "format_message"):  # typer's, of the command line itself
        sentence = _usage(error)
    elif isinstance(error, OSError):
        files = [str(name) for name in (error.filename, error.filename2) if name is not None]
        sentence = f"{' and '.join(files) or 'a file'}: {reason_and_remedy(error)}."
    elif isinstance(error, MemoryError) or short_of_memory:
        todo = "make model.dim, batch sizes or the data smaller"
        sentence = f"This needs more memory than there is ({summary}); {todo}."
    else:
        what = f"Something went wrong that Evergram did not foresee ({summary}); {_log(error)}"
        return what, UNFORESEEN
    # Each control sign as Python writes it: names may have line feeds.
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda sign: repr(sign[0])[1:-1], sentence), REFUSED


def with_own_options(sentence: str) -> str:
    """Return a sentence of the library without the options in brackets that the command lacks."""
    own = options_of(sys.argv[1:])
    return _OPTION.sub(lambda found: found[0] if found[1] in own else "", sentence)


def _usage(error: Any) -> str:
    """Return a sentence on a wrong command line; print the help for an empty one, and return ""."""
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        # Rich has printed it already, and the message is then empty.
        sys.stdout.write(error.format_message())
        return ""
    problem = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error.__cause__, ValidationError):
        names = getattr(getattr(error, "param", None), "opts", None) or ["it"]
        problem = sentence_of(error.__cause__, name=names[-1]).rstrip(".")
    command = "evergram" if context is None else context.command_path
    return f"{problem}; '{command} --help' says what there is."


def without_passwords(text: str) -> str:
    """Return a text with the passwords of its addresses blanked."""
    return re.sub(r"(://[^\s:/@]*):[^\s/]+@", r"\1:…@", text)


def _log(error: Exception) -> str:
    """Write the details of an error to a file. Returns: the end of a sentence, which names it."""
    about = f"evergram {version('evergram')}, Python {platform.python_version()}"
    lines = [f"{about}, {platform.platform()}", " ".join(sys.argv), ""]
    details = without_passwords("\n".join([*lines, *traceback.format_exception(error)]))
    try:  # Readable by its owner only, as it holds paths and ids.
        descriptor, path = tempfile.mkstemp(".log", "evergram-")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(details)
    except OSError as failed:
        return f"no log could be written ({failed.strerror}), so the details follow.\n{details}"
    return f"the details, for a report of it, are in {path}."


def error_line(sentence: str, code: int = REFUSED) -> str:
    """Return the line that reports an error, with the process where there are several."""
    where = "error" if is_first_process() else "error in a process that is not the first"
    return line_of("error", sentence, level="error", before=f"{where}: ", exit_code=code) + "\n"


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
    """Let no write to stdout or stderr fail in a `with` block: a stream may be closed (`>&-`), its
    reader may end (`| head -1`), and its encoding may lack a character, which becomes an escape.

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
