"""The files of a prepared folder: `PreparedRecord`, its `prepared.json`, and `ColumnFile`, a column
of interactions; see docs/large-data.md."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from evergram.data.reading.interactions import SIDES, SideName
from evergram.errors import DataError
from evergram.validation import sentence_of

if TYPE_CHECKING:
    from torch import Tensor

NAME = "prepared.json"
FORMAT_VERSION: Final = 1

ColumnType: TypeAlias = Literal["int32", "int64", "float32", "float64"]
Column = NDArray[Any]
# What NumPy raises for a file that is damaged.
DAMAGE = (OSError, ValueError, EOFError, OverflowError, SyntaxError, TokenError)


class SideRecord(BaseModel):
    entities: int = Field(ge=1)
    features: list[str]


class PreparedRecord(BaseModel):
    """The whole record.

    Args:
        interactions: n.
        columns: the type of each column of interactions that there is.
        sources: names of the files that it was made of.
        fingerprint: changes whenever the content of the folder does; it names a folder of derived
            files.
        sha256: of each file; one without it is not checked.
    """

    # A later writer may add keys that this reader does not need.
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")

    format_version: Literal[1]
    shared_ids: bool
    interactions: int = Field(ge=1)
    sides: dict[SideName, SideRecord]
    columns: dict[str, ColumnType]
    sources: list[str] = []
    fingerprint: str = Field(pattern=r"^[A-Za-z0-9_-]{8,200}$")
    sha256: dict[str, str] = {}

    @model_validator(mode="after")
    def _agrees(self) -> PreparedRecord:
        if set(self.sides) != set(SIDES) or not set(SIDES) <= set(self.columns):
            raise ValueError(
                f"it has the sides {', '.join(self.sides)} and the columns "
                f"{', '.join(self.columns)}, and query and candidate must be among both"
            )
        return self

    @classmethod
    def load(cls, folder: Path) -> PreparedRecord:
        path = folder / NAME
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DataError(
                f"{folder} is no prepared corpus, as it has no {NAME}, which `evergram prepare` "
                f"writes last; `evergram prepare SOURCE {folder}` makes one."
            ) from error
        except OSError as error:
            why = error.strerror or str(error)
            raise DataError(f"{path} cannot be read: {why}; prepare the corpus again.") from error
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            problem = sentence_of(error, cls).rstrip(".")
            raise DataError(f"{path} is damaged: {problem}; prepare the corpus again.") from error


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
    def open(
        cls, path: Path, length: int | None = None, sha256: str | None = None, kind: str = ""
    ) -> ColumnFile:
        """Return the file of one column, of `length` numbers of a kind where these are given."""
        try:
            mapped = np.lib.format.open_memmap(path, mode="r")
        except DAMAGE as error:
            raise DataError(f"{path} cannot be read: {error}; prepare the data again.") from error
        if mapped.ndim != 1 or length not in (None, len(mapped)) or kind not in ("", mapped.dtype):
            raise DataError(
                f"{path} has the shape {mapped.shape} of {mapped.dtype}, and a column of "
                f"{length or 'any'} numbers{kind and f' of {kind}'} is expected; the file was "
                "changed or is damaged. Prepare the data again."
            )
        return cls(path, mapped.dtype, len(mapped), mapped.offset, sha256)

    def mapped(self, *, at_random: bool = False) -> Column:
        """Return the numbers, [length], mapped into memory, also once the file was removed; nothing
        written there is kept, and `at_random` nothing is read ahead."""
        with self.path.open("rb") as file:
            # Copy on write, since torch warns of arrays that cannot be written.
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if at_random and hasattr(mmap, "MADV_RANDOM"):
            memory.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(memory, self.dtype, self.length, self.offset)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, expected: str | None, remedy: str) -> None:
    """Raise a DataError with the sentence `remedy` if the file cannot be read, or has another
    SHA-256 than the expected one, if that is known."""
    try:
        digest = expected and sha256_of(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. {remedy}") from error
    if digest != expected:
        raise DataError(
            f"{path} is not as it was written; the file was changed or is damaged. {remedy}"
        )


def release(columns: Iterable[Column]) -> None:
    """Take the pages of mapped columns, or of slices of them, out of this process's memory until
    one is read again; other columns are left as they are."""
    for column in columns:
        memory: Any = column
        while isinstance(memory, np.ndarray):
            memory = memory.base
        if isinstance(memory, memoryview):
            memory = memory.obj
        if isinstance(memory, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            memory.madvise(mmap.MADV_DONTNEED)


def check_rows(rows: Tensor, side: str, size: int, remedy: str) -> None:
    """Raise a DataError with the sentence `remedy` if a row is outside of a side of `size`
    entities."""
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
