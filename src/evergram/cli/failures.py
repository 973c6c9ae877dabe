"""What is said of an error, and the exit code of each kind."""

from __future__ import annotations

import logging
import os
import platform
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from evergram.errors import EvergramError
from evergram.validation import sentence_of

# Bad input, or something that cannot be done; and what nobody has foreseen, as BSD's sysexits.h
# has it.
REFUSED, UNFORESEEN, INTERRUPTED = 2, 70, 130
# Characters of an unforeseen error that are repeated.
SHOWN = 200
# How torch, numpy and Arrow say that there is not so much memory, and what they wanted.
_MEMORY = re.compile(
    r"(?i)can't allocate memory|not enough memory|out of memory|unable to allocate|malloc of size"
    r"|realloc of size|storage size calculation overflowed"
)
_BYTES = re.compile(r"(?i)(?:allocate|size) ([\d.,]+ ?(?:[KMGTPE]i?B|bytes)?)")


class _Warnings(logging.Handler):
    """Warnings of the library, a line each on stderr as it is now."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"warning: {record.getMessage()}\n")


@contextmanager
def warnings_told() -> Iterator[None]:
    """Write what the library warns of to stderr; `serve` has a log of its own."""
    logger, handler = logging.getLogger("evergram"), _Warnings(logging.WARNING)
    if sys.argv[1:2] != ["serve"]:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def told(error: Exception) -> tuple[str, int]:
    """What to say of an error, in one sentence, and the exit code. Details of what nobody has
    foreseen are in a log file, which the sentence names; nothing is said where help was printed."""
    if isinstance(error, EvergramError):
        return str(error), REFUSED
    if hasattr(error, "format_message"):  # typer's, of the command line itself
        return _usage(error), REFUSED
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror or error}", REFUSED
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | ValueError) and _MEMORY.search(str(error))
    ):
        return _memory(str(error)), REFUSED
    what = without_passwords(" ".join(f"{type(error).__name__}: {error}".split()))
    if len(what) > SHOWN:
        what = f"{what[:SHOWN]}…"
    return f"Something went wrong that Evergram did not foresee ({what}); {_log(error)}", UNFORESEEN


def _usage(error: Any) -> str:
    """What is wrong with the command line; where it is empty, its help is printed."""
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(context.get_help())
        return ""
    said = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error.__cause__, ValidationError):
        names = getattr(getattr(error, "param", None), "opts", None) or ["it"]
        said = sentence_of(error.__cause__, name=names[-1]).rstrip(".")
    return (
        said if context is None else f"{said}; '{context.command_path} --help' says what there is."
    )


def without_passwords(text: str) -> str:
    """Addresses without the password in them."""
    return re.sub(r"(://[^\s:/@]*):[^\s/]+@", r"\1:…@", text)


def _memory(text: str) -> str:
    wanted = _BYTES.search(text)
    how_much = "more memory than there is"
    if wanted is not None:
        size = wanted[1].rstrip(",. ")
        if size.replace(",", "").isdigit():
            size = f"{int(size.replace(',', '')):,} bytes"
        how_much = f"{size} of memory at once, and there is not so much"
    return (
        f"This needs {how_much}; make what is large smaller: model.dim, batch sizes, or the data."
    )


def _log(error: Exception) -> str:
    """Write the details to a file. Returns: the sentence's end, which says where they are."""
    lines = [
        f"evergram {version('evergram')}, Python {platform.python_version()}, "
        f"{platform.platform()}",
        " ".join(sys.argv),
        "",
        *traceback.format_exception(error),
    ]
    details = without_passwords("\n".join(lines))
    name = f"evergram-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    path = Path(tempfile.gettempdir()) / name
    try:
        # Paths and ids are in it: nobody else's business. A file of that name is never followed.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(details)
    except OSError as failed:
        return f"{path} could not be written ({failed.strerror}), so the details follow.\n{details}"
    return f"the details, for a report of it, are in {path}."
