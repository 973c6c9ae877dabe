"""`ColumnFile`: one column of interactions on disk, a NumPy file of one dimension."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergram.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

Column = NDArray[Any]
# What NumPy raises for a file that is damaged.
DAMAGE = (OSError, ValueError, EOFError, OverflowError, SyntaxError, TokenError)


@dataclass(frozen=True)
class ColumnFile:
    """A .npy file of one dimension; `sha256` is of the file as it was written, None if that is not
    known, and `offset` the bytes before the first number."""

    path: Path
    dtype: np.dtype[Any]
    length: int
    offset: int
    sha256: str | None = None

    @classmethod
    def open(cls, path: Path, length: int | None = None, sha256: str | None = None) -> ColumnFile:
        """Return the file. Raises: DataError: it is not one column of `length` numbers, or of any
        if that is None."""
        try:
            mapped = np.lib.format.open_memmap(path, mode="r")
        except DAMAGE as error:
            raise DataError(f"{path} cannot be read: {error}; prepare the data again.") from error
        if mapped.ndim != 1 or length not in (None, len(mapped)):
            expected = "a column of" if length is None else f"{length:,}"
            raise DataError(
                f"{path} has the shape {mapped.shape}, and {expected} numbers are expected; the "
                "file was changed or is damaged. Prepare the data again."
            )
        return cls(path, mapped.dtype, len(mapped), mapped.offset, sha256)

    def mapped(self, *, at_random: bool = False) -> Column:
        """Return the numbers, [length], mapped into memory; nothing written there is kept, and the
        file may be removed.

        Args:
            at_random: whether they are read in no order, so that nothing is read ahead.
        """
        with self.path.open("rb") as file:
            # Copy on write, since torch warns of arrays that cannot be written.
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if at_random and hasattr(mmap, "MADV_RANDOM"):
            memory.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(memory, self.dtype, self.length, self.offset)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. Raises: OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, expected: str | None, remedy: str) -> None:
    """Raises: DataError: the file cannot be read, or has another SHA-256 than it was written with,
    where that is known; `remedy` is a sentence that says what to do about it."""
    try:
        digest = expected and sha256_of(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. {remedy}") from error
    if digest != expected:
        raise DataError(
            f"{path} is not as it was written; the file was changed or is damaged. {remedy}"
        )


def release(columns: Iterable[Column]) -> None:
    """Take the pages of mapped columns, or of slices of them, out of this process's memory, until
    one is read again. Other columns, and systems that cannot do it, are left as they are."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    for column in columns:
        memory: Any = column
        while isinstance(memory, np.ndarray):
            memory = memory.base
        if isinstance(memory, memoryview):
            memory = memory.obj
        if isinstance(memory, mmap.mmap):
            memory.madvise(mmap.MADV_DONTNEED)


def check_rows(rows: Tensor, side: str, size: int, remedy: str) -> None:
    """Raises: DataError: a row is outside of a side of `size` entities; `remedy` is a sentence that
    says what to do about it."""
    if not rows.numel():
        return
    least, most = (int(end) for end in rows.aminmax())
    if least < 0 or most >= size:
        raise DataError(
            f"The column {side!r} of prepared data names the rows {least} to {most} and there are "
            f"{size:,}; the files are damaged. {remedy}"
        )


@contextmanager
def new_column(path: Path, dtype: np.dtype[Any], length: int) -> Iterator[IO[bytes]]:
    """Yield a file open for writing, after the header of a column of `length` numbers.

    It is written by system calls, so that a full disk is an OSError and no signal.
    """
    header = {"descr": dtype.str, "fortran_order": False, "shape": (length,)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        yield file
