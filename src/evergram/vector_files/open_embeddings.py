"""Open a file of ids and vectors of any format: Parquet, Arrow or .npy."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from evergram.file_content import NPY_SIGN, unreadable
from evergram.ids import first_missing, ids_of_text, is_text, missing_sentence

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc", ".arrows")
SUFFIXES = (*PARQUET, *ARROW, ".npy")
# The first bytes of each format. A stream of Arrow begins with the mark of a message.
_OF_ARROW = (b"ARROW1", b"FEA1", b"\xff\xff\xff\xff")
_SIGNS_OF = {
    **dict.fromkeys(PARQUET, (b"PAR1",)),
    ".npy": (NPY_SIGN,),
}
FLOATS = {pa.float16(): np.float32, pa.float32(): np.float32, pa.float64(): np.float64}
# Rows held at once: 50 MB of 768 floats; and bytes of a column that are read at once.
BLOCK, READ_AHEAD = 16_384, 1 << 20
Block = tuple[pa.Array, Tensor]
# The version whose space the vectors are in, and the one that they were computed from.
FINGERPRINT = "evergram.fingerprint"
COMPUTED_FROM = "evergram.computed_from"
# The encoder that made the vectors from texts: JSON of `texts.record.TextEncoderRecord`.
TEXT_ENCODER = "evergram.text_encoder"
# The type of the ids of a .npy file, which lie beside it as text: "int64" or "string".
ID_TYPE = "evergram.id_type"


def provenance_of(fingerprint: str, computed_from: str) -> dict[str, str]:
    """Return the metadata to write with vectors: the fingerprints of the version whose space they
    are in, and of the one that embedded the objects."""
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
    return path.with_name(f"{path.name}.json")


def read_provenance_file(path: Path) -> dict[str, Any]:
    """Return the object in the JSON file beside `path`; empty without such a file."""
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


class EmbeddingFile(ABC):
    """A file of N ids and vectors [N, D], which can be read from its front any number of times.

    Args:
        path: the file.
        rows, dim: N and D.
    Attributes:
        provenance: which version the file says that its vectors are of, see `provenance_of`.
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
        """Return all N ids, int64 or string."""

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
        """Yield the blocks, of which `start` is the first row, with their vectors read as a version
        by `read`, [b, D_j], and refuse numbers that are not finite as float32."""
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
    """Return the message of another library's error in one line."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def companion(path: Path) -> Path:
    """Return the path of the ids beside a file without them: `NAME.ids.txt`, one a line."""
    return path.with_suffix(".ids.txt")


class NpyVectors(EmbeddingFile):
    """A .npy file, with the ids in a text file beside it."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            start = file.read(len(NPY_SIGN))
        # np.load would take the file for a zip or a pickle.
        if start != NPY_SIGN:
            raise unreadable(path, ValueError("it is not a NumPy array"), NPY_SIGN)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim != 2 or array.dtype.kind != "f":
            what = f"{array.dtype} of shape {list(array.shape)}"
            raise DataError(f"{path} holds {what}; floats [N, D] are needed.")
        super().__init__(path, *array.shape)
        record = read_provenance_file(path)
        self.provenance: dict[str, str] = provenance_in(record)
        self._dtype = np.float64 if array.dtype.itemsize == 8 else np.float32
        written, beside = record.get(ID_TYPE), companion(path)
        self.has_ids: bool = beside.is_file()
        if not self.has_ids:
            if written:
                raise DataError(f"{beside} is missing, and {path} has its ids there; restore it.")
            self._ids = pa.array(np.arange(self.rows))
            return
        texts = self._lines(beside, written)
        self._ids = texts if written == "string" else ids_of_text(texts)
        kind = self._ids.type
        if pa.types.is_floating(kind) or (written == "int64" and not pa.types.is_integer(kind)):
            raise DataError(
                f"The ids of {beside}, such as {texts[0]}, are numbers with a decimal point, or no "
                "integers as those that were written; write integers, or texts that are no numbers."
            )

    def _lines(self, beside: Path, written: str | None) -> pa.Array:
        """Return the lines of the file of ids, which were `written` here as "int64" or "string", or
        by another program."""
        try:
            # Programs of Windows begin a file with a mark that is no part of the first id.
            encoding = "utf-8" if written == "string" else "utf-8-sig"
            lines = beside.read_text(encoding=encoding).split("\n")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise DataError(
                f"{beside} cannot be read as ids: {why}; give a text file of one id a line."
            ) from error
        if lines[-1] == "":
            lines.pop()
        if len(lines) != self.rows:
            both = f"{beside} has {len(lines)} ids and {self.path} {self.rows} vectors"
            raise DataError(f"{both}; one id a line is needed.")
        texts, text_file = pa.array(lines, pa.string()), written != "string"
        line = first_missing(texts, text_file=text_file)
        if line >= 0:
            where = f"{beside} line {line + 1}"
            raise DataError(missing_sentence(where, "", lines[line], text_file=text_file))
        return texts

    def ids(self) -> pa.Array:
        return self._ids

    def _read(self, size: int) -> Iterator[Block]:
        for start in range(0, self.rows, size):
            # Opened anew, so that little of it stays mapped.
            mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)
            rows = np.array(mapped[start : start + size], dtype=self._dtype, order="C")
            yield self._ids.slice(start, len(rows)), torch.from_numpy(rows)


class ColumnVectors(EmbeddingFile):
    """A file with a column of ids and a column of vectors."""

    def __init__(
        self, path: Path, schema: pa.Schema, rows: int, id_column: str, vector_column: str
    ) -> None:
        for name, role in ((id_column, "id"), (vector_column, "vector")):
            if schema.names.count(name) != 1:
                has = ", ".join(schema.names)
                several = "two columns" if name in schema.names else "no column"
                raise DataError(
                    f"{path} has {several} {name!r}; its columns are: {has}"
                    f"{did_you_mean(name, schema.names)}; "
                    f"name the right one with --column {role}=NAME."
                )
        if not rows:
            # Before the types: of no rows a program may write columns of no type.
            raise DataError(f"{path} holds no vectors; it has no rows.")
        self._id, self._vector = id_column, vector_column
        self.column: str = vector_column
        kind = schema.field(vector_column).type
        fixed = pa.types.is_fixed_size_list(kind)
        is_list = fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not is_list or kind.value_type not in FLOATS:
            raise DataError(
                f"{path}: column {vector_column!r} is {kind}; lists of float16, float32 or float64 "
                "are needed."
            )
        self._dtype = FLOATS[kind.value_type]
        id_kind = schema.field(id_column).type
        if pa.types.is_dictionary(id_kind):
            id_kind = id_kind.value_type
        self._id_type = pa.int64() if pa.types.is_integer(id_kind) else pa.string()
        if not (pa.types.is_integer(id_kind) or is_text(id_kind)):
            raise DataError(f"{path}: column {id_column!r} is {id_kind}; ids are integers or text.")
        dim = kind.list_size if fixed else 0
        self.path = path
        if rows and not fixed:
            first = next(self._batches(1, [vector_column]))[vector_column][0]
            if not first.is_valid:
                raise DataError(
                    f"{path} row 1: its vector is missing; correct the file or leave the row out."
                )
            dim = len(first)
        super().__init__(path, rows, dim)
        self.provenance: dict[str, str] = provenance_in(schema.metadata)

    @abstractmethod
    def _batches(self, size: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most `size` rows of these columns."""

    def ids(self) -> pa.Array:
        parts = [self._ids_of(b[self._id]) for b in self._batches(1 << 20, [self._id])]
        return pa.concat_arrays(parts)

    def _read(self, size: int) -> Iterator[Block]:
        start = 0
        for batch in self._batches(size, [self._id, self._vector]):
            ids = self._ids_of(batch[self._id], start)
            yield ids, self._vectors(batch[self._vector], ids, start)
            start += len(ids)

    def _ids_of(self, column: pa.Array, start: int = 0) -> pa.Array:
        row = first_missing(column)
        if row >= 0:
            where, cell = f"{self.path} row {start + row + 1}", column[row].as_py()
            raise DataError(missing_sentence(where, "", cell))
        try:
            return column.cast(self._id_type)
        except pa.ArrowInvalid as error:
            raise DataError(f"{self.path}: an id is no 64-bit integer: {error}.") from error

    def _vectors(self, column: pa.Array, ids: pa.Array, start: int) -> Tensor:
        def refuse(places: pa.Array, what: str) -> None:
            row = pc.index(places, True).as_py()
            raise self._error(start + row, ids[row], what)

        if column.null_count:
            refuse(column.is_null(), "is missing")
        if not pa.types.is_fixed_size_list(column.type):
            lengths = pc.list_value_length(column)
            wrong = pc.not_equal(lengths, self.dim)
            if pc.any(wrong).as_py():
                row = pc.index(wrong, True).as_py()
                refuse(wrong, f"has {lengths[row]} numbers, and the first row has {self.dim}")
        values = column.flatten()
        if values.null_count:
            empty = values.is_null().to_numpy(zero_copy_only=False)
            refuse(pa.array(empty.reshape(-1, self.dim).any(1)), "holds a null")
        # Copied, as Arrow's memory must not be written to.
        flat = np.array(values.to_numpy(zero_copy_only=False), dtype=self._dtype)
        return torch.from_numpy(flat.reshape(-1, self.dim))


class ParquetVectors(ColumnVectors):
    """A Parquet file."""

    def __init__(self, path: Path, id_column: str, vector_column: str) -> None:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        super().__init__(path, schema, rows, id_column, vector_column)

    def _batches(self, size: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            # Pre-buffered, row groups that were read stay in memory until the end of the file;
            # without a buffer, a column of a whole row group is read at once.
            with pq.ParquetFile(self.path, buffer_size=READ_AHEAD, pre_buffer=False) as file:
                yield from file.iter_batches(size, columns=columns)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.path} cannot be read: {sentence(error)}.") from error


class ArrowVectors(ColumnVectors):
    """An Arrow IPC file or IPC stream; the first bytes tell which."""

    def __init__(self, path: Path, id_column: str, vector_column: str) -> None:
        with path.open("rb") as file:
            self._opener = pa.ipc.open_file if file.read(6) == b"ARROW1" else pa.ipc.open_stream
        self.path = path
        with pa.memory_map(str(path)) as source:
            schema = self._opener(source).schema
        self._names = schema.names
        named = [id_column] if id_column in schema.names else []
        rows = sum(batch.num_rows for batch in self._batches(1 << 30, named)) if named else 0
        super().__init__(path, schema, rows, id_column, vector_column)

    def _batches(self, size: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        fields = [self._names.index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        try:
            with pa.memory_map(str(self.path)) as source:
                reader = self._opener(source, options=options)
                count = getattr(reader, "num_record_batches", None)  # None of a stream
                for batch in reader if count is None else map(reader.get_batch, range(count)):
                    for start in range(0, batch.num_rows, size):
                        yield batch.slice(start, size)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.path} cannot be read: {sentence(error)}.") from error


def open_embeddings(
    path: Path, *, id_column: str = "id", vector_column: str = "vector"
) -> EmbeddingFile:
    """Open a file by its suffix: .parquet, .arrow (file or stream) or .npy. Ids of the last are
    those of `NAME.ids.txt` beside it, or the numbers of the rows.

    Args:
        id_column, vector_column: names of the columns.
    Raises: DataError: the file is missing, damaged, empty, of another format, or lacks a column.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder; give one of its files.")
    if not path.is_file():
        raise DataError(f"{path} is not there; give the path of a file of vectors.")
    suffix = path.suffix.lower()
    try:
        if suffix in PARQUET:
            return ParquetVectors(path, id_column, vector_column)
        if suffix in ARROW:
            return ArrowVectors(path, id_column, vector_column)
        if suffix == ".npy":
            return NpyVectors(path)
    except (OSError, ValueError, EOFError, pa.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        raise unreadable(path, error, *_SIGNS_OF.get(suffix, _OF_ARROW)) from error
    raise unknown_format(path)


def unknown_format(path: Path) -> DataError:
    known = ", ".join(SUFFIXES)
    return DataError(f"{path} is of no known format; the known ones end in {known}.")
