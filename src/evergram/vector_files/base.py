"""`EmbeddingFile`: the interface of files of ids and vectors, of any format."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch import Tensor

from evergram.errors import DataError

# The version whose space the vectors are in, and the one that they were computed from.
FINGERPRINT = "evergram.fingerprint"
COMPUTED_FROM = "evergram.computed_from"
# The encoder that made the vectors from texts: JSON of `texts.record.TextEncoderRecord`.
TEXT_ENCODER = "evergram.text_encoder"
# The type of the ids of a .npy file, which lie beside it as text: "int64" or "string".
ID_TYPE = "evergram.id_type"


def provenance_of(fingerprint: str, computed_from: str) -> dict[str, str]:
    """Return the metadata to write with vectors.

    Args:
        fingerprint: of the version whose space the vectors are in.
        computed_from: fingerprint of the version that embedded the objects.
    """
    return {FINGERPRINT: fingerprint, COMPUTED_FROM: computed_from}


def provenance_in(metadata: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return the provenance among a file's metadata, whose keys and values are bytes or text."""
    ours = {}
    for key, value in (metadata or {}).items():
        name = key.decode(errors="replace") if isinstance(key, bytes) else str(key)
        if name in (FINGERPRINT, COMPUTED_FROM, TEXT_ENCODER):
            ours[name] = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return ours


def provenance_file(path: Path) -> Path:
    """Return the path of the JSON with a file's provenance, such as `NAME.npy.json`."""
    return path.with_name(f"{path.name}.json")


def read_provenance_file(path: Path) -> dict[str, Any]:
    """Return the object in the JSON file beside `path`; empty without such a file.

    Raises: DataError: that file is damaged.
    """
    beside = provenance_file(path)
    if not beside.is_file():
        return {}
    try:
        content = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{beside} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise DataError(
            f"{beside} is not a JSON object of provenance; remove it, or write {path} again."
        )
    return content


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
        column: the name of the column of vectors; None where a format has no columns.
    Raises: DataError: the file has no rows or no dims.
    """

    has_ids = True
    column: str | None = None

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
            row = first_not_finite(vectors.float())
            if row is not None:
                raise self._error(start + row, ids[row], f"has {not_finite(vectors[row])}")
            yield ids, vectors
            start += len(ids)

    def read_as(
        self, read: Callable[[Tensor], Tensor], version: int, blocks: Iterable[Block], start: int
    ) -> Iterator[Block]:
        """Yield blocks of this file with their vectors read as a version, [b, D_j], by `read`.

        Args:
            start: the row that the blocks begin with, for errors.
        Raises: DataError: what `read` returns has a number that is not finite as float32.
        """
        for ids, vectors in blocks:
            of_version = read(vectors)
            row = first_not_finite(of_version.float())
            if row is not None:
                raise self._error(start + row, ids[row], out_of_range(vectors[row], version))
            yield ids, of_version
            start += len(ids)

    def _error(self, row: int, id_: pa.Scalar, what: str) -> DataError:
        vector = "its vector" if self.column is None else f"its vector (column {self.column!r})"
        return DataError(
            f"{self.path} row {row + 1} (id {id_.as_py()!r}): {vector} {what}; "
            "correct the file or leave the row out."
        )


def first_not_finite(vectors: Tensor) -> int | None:
    """Return the first row of [N, D] that has a NaN or an infinity; None if there is none."""
    # The sum of finite rows is finite unless it is too large itself: then look at each row.
    if bool(vectors.sum().isfinite()):
        return None
    bad = (~vectors.isfinite()).any(1).nonzero()
    return int(bad[0]) if len(bad) else None


def not_finite(vector: Tensor) -> str:
    """Return what a vector [D] that is not finite as float32 has, for a sentence."""
    if bool(vector.isfinite().all()):
        return f"a number too large for float32 ({float(_largest(vector)):g})"
    bad = vector[~vector.isfinite()][0]
    return f"a NaN or an infinity ({float(bad)})"


def out_of_range(vector: Tensor, version: int) -> str:
    """Return why a vector [D] cannot be read as a version, for a sentence that it is part of."""
    return (
        f"has numbers as large as {float(_largest(vector)):g}, and read as version {version} would "
        "have one that is too large for float32"
    )


def _largest(vector: Tensor) -> Tensor:
    return vector[vector.abs().argmax()]


def sentence(error: Exception) -> str:
    """Return the message of another library's error, without line breaks and final full stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
