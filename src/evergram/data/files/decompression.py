"""Read compressed files, and refuse those that expand to far more than genuine data does."""

from __future__ import annotations

import gzip
import lzma
import math
import os
import zipfile
import zlib
from pathlib import Path

from evergram.errors import DataError

LIMIT = "EVERGRAM_MAX_EXPANSION"
# Text of interactions, articles and dumps expands 2 to 20 times; gzip can do 1,000 times.
TIMES = 100.0
# What is as small as this when it is expanded harms nobody, however well it was compressed.
HARMLESS = 64 << 20
_CHUNK = 1 << 20

# What the decoders of the standard library raise of a file that is cut or damaged; RuntimeError is
# what zipfile says of a member that needs a password, or is compressed in a way it does not know.
DAMAGED = (OSError, EOFError, zlib.error, zipfile.BadZipFile, lzma.LZMAError, RuntimeError)


class GzipReader(gzip.GzipFile):
    """A gzip file's bytes, as `gzip.open` gives them, up to the limit of expansion.

    Raises: DataError: on reading past the limit.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._most = self._left = most_bytes(path.stat().st_size)
        super().__init__(path, "rb")

    def read(self, size: int | None = -1) -> bytes:
        """At most `size` bytes; all that are left where it is negative or None."""
        # One byte more than may be tells that there are more.
        wanted = self._left + 1 if size is None or size < 0 else size
        return self._counted(super().read(wanted))

    def read1(self, size: int = -1) -> bytes:
        """At most `size` bytes, all of which were there before a place that is damaged."""
        return self._counted(super().read1(size))

    def _counted(self, content: bytes) -> bytes:
        self._left -= len(content)
        if self._left < 0:
            raise _too_large(self._path, self._most)
        return content


def read_member(archive: zipfile.ZipFile, member: str, path: Path) -> bytes:
    """The whole of one file in the zip at `path`.

    Raises: DataError: it is past the limit of expansion.
    """
    # What the archive says of sizes may be wrong; those of the file on the disk are not.
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
    """How many bytes a compressed file of `packed` bytes may expand to.

    Raises: DataError: the limit of the environment is no number.
    """
    return max(HARMLESS, int(_times() * packed))


def _times() -> float:
    text = os.environ.get(LIMIT)
    if not text:
        return TIMES
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 1 <= found < 1e9:
        raise DataError(
            f"{LIMIT} is {text!r}; it must be a number from 1 on: how many times its size a "
            f"compressed file may expand to ({TIMES:g} where it is not set)."
        )
    return found


def _too_large(path: Path, most: int) -> DataError:
    return DataError(
        f"{path} expands to more than {most >> 20} MiB, over {_times():g} times its size, as no "
        "genuine data does: get it from where you trust it, or if it is right, set "
        f"{LIMIT} to a larger number of times."
    )
