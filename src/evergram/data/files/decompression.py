"""Read compressed files, and refuse one that expands to far more than genuine data does."""

from __future__ import annotations

import gzip
import lzma
import math
import os
import zipfile
import zlib
from pathlib import Path
from typing import IO

from evergram.errors import DataError

LIMIT = "EVERGRAM_MAX_EXPANSION"
# Text of interactions, articles and dumps expands 2 to 20 times; gzip can do 1,000 times.
TIMES = 100.0
# An expanded size that is harmless, however well it was compressed.
HARMLESS = 64 << 20
_CHUNK = 1 << 20

# Errors of the standard library's decoders for a file that is cut or damaged; zipfile raises
# RuntimeError for a member that needs a password, or has an unknown compression.
DAMAGED = (OSError, EOFError, zlib.error, zipfile.BadZipFile, lzma.LZMAError, RuntimeError)


class GzipReader(gzip.GzipFile):
    """A reader of a gzip file, as of `gzip.open`, up to the limit of expansion.

    Args:
        path: the file, or its address if it is open already.
        opened: the open file and its bytes, where it is on no disk of this machine.
    Raises: DataError: on reading past the limit.
    """

    def __init__(self, path: Path | str, opened: tuple[IO[bytes], int] | None = None) -> None:
        stream, size = (None, Path(path).stat().st_size) if opened is None else opened
        self._path = path
        self._most = self._left = most_bytes(size)
        super().__init__(path, "rb", fileobj=stream)

    def read(self, size: int | None = -1) -> bytes:
        """Return at most `size` bytes; all that are left if it is negative or None."""
        # One byte beyond the limit shows that it is passed.
        wanted = self._left + 1 if size is None or size < 0 else size
        return self._counted(super().read(wanted))

    def read1(self, size: int = -1) -> bytes:
        """Return at most `size` bytes, all of them from before a damaged place."""
        return self._counted(super().read1(size))

    def _counted(self, content: bytes) -> bytes:
        self._left -= len(content)
        if self._left < 0:
            raise _too_large(self._path, self._most)
        return content


def read_member(archive: zipfile.ZipFile, member: str, path: Path) -> bytes:
    """Return the whole of one file in the zip at `path`.

    Raises: DataError: it is past the limit of expansion.
    """
    # The archive's own sizes may be wrong; the size on the disk is not.
    packed = min(archive.getinfo(member).compress_size, path.stat().st_size)
    most = most_bytes(packed)
    parts, size = [], 0
    with archive.open(member) as file:
        while part := file.read(_CHUNK):
            parts.append(part)
            size += len(part)
            if size > most:
                raise _too_large(path, most)
    return b"".join(parts)


def most_bytes(packed: int) -> int:
    """Return the number of bytes that a compressed file of `packed` bytes may expand to.

    Raises: DataError: the limit in the environment is not a number of at least 1.
    """
    return max(HARMLESS, int(_times() * packed))


def _times() -> float:
    text = os.environ.get(LIMIT)
    if not text:
        return TIMES
    try:
        times = float(text)
    except ValueError:
        times = math.nan
    if not 1 <= times < 1e9:
        raise DataError(
            f"{LIMIT} is {text!r}; it must be a number from 1 on: how many times its size a "
            f"compressed file may expand to ({TIMES:g} by default)."
        )
    return times


def _too_large(path: Path | str, most: int) -> DataError:
    return DataError(
        f"{path} expands to more than {most >> 20} MiB, over {_times():g} times its size, as no "
        "genuine data does; get it from a source that you trust, or if it is right, set "
        f"{LIMIT} to a larger number of times."
    )
