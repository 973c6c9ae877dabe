"""`EmbeddingFile`: the interface of files of ids and vectors, of any format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from torch import Tensor

from evergram.errors import DataError
from evergram.vector_files.provenance import FINGERPRINT

# Rows held at once: 50 MB of 768 floats.
BLOCK = 16_384

Block = tuple[pa.Array, Tensor]


class EmbeddingFile(ABC):
    """A file of N ids and vectors [N, D], which can be read from its front any number of times.

    Args:
        path: the file.
        rows, dim: N and D.
    Attributes:
        provenance: which version the file says that its vectors are of, see
            `vector_files.provenance`.
        has_ids: False if the ids are only the numbers of the rows.
    Raises: DataError: the file has no rows or no dims.
    """

    has_ids = True

    def __init__(self, path: Path, rows: int, dim: int) -> None:
        if not rows or not dim:
            raise DataError(f"{path} holds no vectors; it needs at least one row and one dim.")
        self.path = path
        self.rows = rows
        self.dim = dim
        self.provenance: dict[str, str] = {}

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the version whose space the vectors are in; None if unknown."""
        return self.provenance.get(FINGERPRINT)

    @abstractmethod
    def ids(self) -> pa.Array:
        """Return all N ids, int64 or string. Raises: DataError: one is missing."""

    @abstractmethod
    def _read(self, size: int) -> Iterator[Block]:
        """Yield blocks of at most `size` rows, whose numbers `blocks` checks."""

    def blocks(self, size: int = BLOCK) -> Iterator[Block]:
        """Yield ids [b] and vectors [b, D], b ≤ size: float64 if the file has it, else float32.

        Raises: DataError: a vector is missing, of another length, or has a NaN, an infinity or a
            number that is infinite as float32; the error names the row and its id.
        """
        start = 0
        for ids, vectors in self._read(size):
            # Vectors are published and written as float32.
            narrow = vectors.float()
            # The sum of finite rows is finite unless it is too large itself: then look at each row.
            if not bool(narrow.sum().isfinite()):
                bad = (~narrow.isfinite()).any(1).nonzero()
                if len(bad):
                    row = int(bad[0])
                    large = bool(vectors[row].isfinite().all())
                    what = "a number too large for float32" if large else "a NaN or an infinity"
                    raise self._error(start + row, ids[row], f"has {what}")
            yield ids, vectors
            start += len(ids)

    def _error(self, row: int, id_: pa.Scalar, what: str) -> DataError:
        return DataError(
            f"{self.path} row {row + 1} (id {id_.as_py()!r}): its vector {what}; "
            "correct the file or leave the row out."
        )


def sentence(error: Exception) -> str:
    """Return the message of another library's error, without line breaks and final full stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
