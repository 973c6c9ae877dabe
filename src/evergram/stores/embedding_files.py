"""Ids and vectors from any file: Parquet, Arrow, .npy or safetensors, block by block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from evergram.errors import DataError

# Rows held at once: 50 MB of 768 floats.
BLOCK = 16_384
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc", ".arrows")
SUFFIXES = (*PARQUET, *ARROW, ".npy", ".safetensors")
FLOATS = {pa.float16(): np.float32, pa.float32(): np.float32, pa.float64(): np.float64}

Block = tuple[pa.Array, Tensor]


class EmbeddingFile(ABC):
    """A file of N ids and vectors [N, D], which is read from its front as often as is asked.

    Args:
        path: the file.
        rows, dim: N and D.
    """

    def __init__(self, path: Path, rows: int, dim: int) -> None:
        if not rows or not dim:
            raise DataError(f"{path} holds no vectors; it needs at least one row and one dim.")
        self.path = path
        self.rows = rows
        self.dim = dim

    @abstractmethod
    def ids(self) -> pa.Array:
        """All N ids at once, int64 or string. Raises: DataError: one is missing."""

    @abstractmethod
    def _read(self, size: int) -> Iterator[Block]:
        """Blocks of at most `size` rows; their numbers are not looked at yet."""

    def blocks(self, size: int = BLOCK) -> Iterator[Block]:
        """Ids [b] and vectors [b, D], b ≤ size: float64 where the file has that, else float32.

        Raises: DataError: a vector is missing, of another length, or has a NaN or an infinity; the
            row and its id are named.
        """
        start = 0
        for ids, vectors in self._read(size):
            # One sum finds what is not finite; a sum may also be too large by itself.
            if not bool(vectors.sum().isfinite()):
                bad = (~vectors.isfinite()).any(1).nonzero()
                if len(bad):
                    row = int(bad[0])
                    raise self._error(start + row, ids[row], "has a NaN or an infinity")
            yield ids, vectors
            start += len(ids)

    def _error(self, row: int, id_: pa.Scalar, what: str) -> DataError:
        return DataError(
            f"{self.path} row {row + 1} (id {id_.as_py()!r}): its vector {what}; "
            "mend the file or leave the row out."
        )


def open_embeddings(
    path: Path, *, id_column: str = "id", vector_column: str = "vector", ids: Path | None = None
) -> EmbeddingFile:
    """A file by its suffix: .parquet, .arrow (file or stream), .npy or .safetensors.

    Args:
        id_column, vector_column: what the columns (safetensors: the tensors) are called there; a
            safetensors file with one 2-D tensor may call it anything.
        ids: a text file with one id a line. Where it is None, `NAME.ids.txt` beside a .npy or
            .safetensors file counts, and where there are no ids at all, the number of the row.
    Raises: DataError: the file is missing, damaged, empty, of no such format, or lacks a column.
    """
    if not path.is_file():
        what = "is a folder; give one of its files" if path.is_dir() else "is not there"
        raise DataError(f"{path} {what}.")
    suffix = path.suffix.lower()
    if ids is not None and suffix in (*PARQUET, *ARROW):
        raise DataError(f"{path} has ids of its own; a file of ids goes with .npy or .safetensors.")
    try:
        if suffix in PARQUET:
            return _Parquet(path, id_column, vector_column)
        if suffix in ARROW:
            return _Arrow(path, id_column, vector_column)
        if suffix == ".npy":
            return _Npy(path, ids)
        if suffix == ".safetensors":
            return _Safetensors(path, id_column, vector_column, ids)
    except (OSError, ValueError, EOFError, pa.ArrowException, SafetensorError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read: {_sentence(error)}.") from error
    raise unknown_format(path)


def unknown_format(path: Path) -> DataError:
    """What to say of a suffix that is not known."""
    known = ", ".join(SUFFIXES)
    return DataError(f"{path} is of no known format; the known ones end in {known}.")


def companion(path: Path) -> Path:
    """Where the ids of a file without room for them are: `NAME.ids.txt`, one a line."""
    return path.with_suffix(".ids.txt")


class _Table(EmbeddingFile):
    """What has columns."""

    def __init__(
        self, path: Path, schema: pa.Schema, rows: int, id_column: str, vector_column: str
    ) -> None:
        for name, option in ((id_column, "--id-column"), (vector_column, "--vector-column")):
            if name not in schema.names:
                has = ", ".join(schema.names)
                raise DataError(
                    f"{path} has no column {name!r}; its columns are: {has}; "
                    f"name the right one with {option}."
                )
            if schema.names.count(name) > 1:
                raise DataError(f"{path} has two columns {name!r}; each needs a name of its own.")
        self._id, self._vector = id_column, vector_column
        kind = schema.field(vector_column).type
        fixed = pa.types.is_fixed_size_list(kind)
        if not fixed and not pa.types.is_list(kind) and not pa.types.is_large_list(kind):
            raise DataError(
                f"{path}: column {vector_column!r} is {kind}; lists of floats are needed."
            )
        if kind.value_type not in FLOATS:
            raise DataError(
                f"{path}: column {vector_column!r} holds {kind.value_type}; float16, float32 or "
                "float64 is needed."
            )
        self._dtype = FLOATS[kind.value_type]
        id_kind = schema.field(id_column).type
        if pa.types.is_dictionary(id_kind):
            id_kind = id_kind.value_type
        self._id_type = pa.int64() if pa.types.is_integer(id_kind) else pa.string()
        if not (pa.types.is_integer(id_kind) or _is_text(id_kind)):
            raise DataError(f"{path}: column {id_column!r} is {id_kind}; ids are integers or text.")
        dim = kind.list_size if fixed else 0
        self.path = path
        if rows and not fixed:
            first = next(self._batches(1, [vector_column]))[vector_column][0]
            dim = len(first) if first.is_valid else 0
        super().__init__(path, rows, dim)

    @abstractmethod
    def _batches(self, size: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Batches of at most `size` rows of these columns."""

    def ids(self) -> pa.Array:
        found = [self._ids_of(b[self._id]) for b in self._batches(1 << 20, [self._id])]
        return pa.concat_arrays(found)

    def _read(self, size: int) -> Iterator[Block]:
        start = 0
        for batch in self._batches(size, [self._id, self._vector]):
            ids = self._ids_of(batch[self._id], start)
            yield ids, self._vectors(batch[self._vector], ids, start)
            start += len(ids)

    def _ids_of(self, column: pa.Array, start: int = 0) -> pa.Array:
        if column.null_count:
            row = start + pc.index(column.is_null(), True).as_py()
            raise DataError(f"{self.path} row {row + 1} has no id; give it one or leave it out.")
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
                refuse(wrong, f"has {lengths[row]} numbers, where the first row has {self.dim}")
        values = column.flatten()
        if values.null_count:
            empty = values.is_null().to_numpy(zero_copy_only=False)
            refuse(pa.array(empty.reshape(-1, self.dim).any(1)), "has an empty place")
        # Copied, as Arrow's memory must not be written to.
        flat = np.array(values.to_numpy(zero_copy_only=False), dtype=self._dtype)
        return torch.from_numpy(flat.reshape(-1, self.dim))


class _Parquet(_Table):
    def __init__(self, path: Path, id_column: str, vector_column: str) -> None:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        super().__init__(path, schema, rows, id_column, vector_column)

    def _batches(self, size: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            with pq.ParquetFile(self.path) as file:
                yield from file.iter_batches(size, columns=columns)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.path} cannot be read: {_sentence(error)}.") from error


class _Arrow(_Table):
    """An IPC file or an IPC stream, told apart by its first bytes."""

    def __init__(self, path: Path, id_column: str, vector_column: str) -> None:
        with path.open("rb") as file:
            self._stream = file.read(6) != b"ARROW1"
        self.path = path
        with pa.memory_map(str(path)) as source:
            schema = self._open(source).schema
        rows = 0
        if id_column in schema.names:
            rows = sum(b.num_rows for b in self._batches(1 << 30, [id_column]))
        super().__init__(path, schema, rows, id_column, vector_column)

    def _open(self, source: Any, columns: list[str] | None = None) -> Any:
        options = pa.ipc.IpcReadOptions()
        if columns is not None:
            with pa.memory_map(str(self.path)) as again:
                names = self._open(again).schema.names
            options = pa.ipc.IpcReadOptions(included_fields=[names.index(c) for c in columns])
        opener = pa.ipc.open_stream if self._stream else pa.ipc.open_file
        return opener(source, options=options)

    def _batches(self, size: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            with pa.memory_map(str(self.path)) as source:
                reader = self._open(source, columns)
                whole = (
                    reader
                    if self._stream
                    else (reader.get_batch(i) for i in range(reader.num_record_batches))
                )
                for batch in whole:
                    for start in range(0, batch.num_rows, size):
                        yield batch.slice(start, size)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.path} cannot be read: {_sentence(error)}.") from error


class _Plain(EmbeddingFile):
    """What has vectors alone, or integers beside them; text ids are in a file of their own."""

    _own: pa.Array | None = None

    def _name(self, ids: Path | None) -> None:
        """Find the ids: those of a file, else the file's own, else the numbers of the rows."""
        beside = companion(self.path) if ids is None else ids
        if ids is None and (self._own is not None or not beside.is_file()):
            return
        try:
            lines = beside.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{beside} cannot be read as ids: {_sentence(error)}.") from error
        if lines[-1] == "":
            lines.pop()
        if len(lines) != self.rows:
            raise DataError(
                f"{beside} has {len(lines)} ids and {self.path} {self.rows} vectors; one id a line "
                "is needed."
            )
        if "" in lines:
            raise DataError(f"{beside} line {lines.index('') + 1} has no id; give it one.")
        self._own = pa.array(lines, pa.string())

    def ids(self) -> pa.Array:
        return self._own if self._own is not None else pa.array(np.arange(self.rows))

    def _read(self, size: int) -> Iterator[Block]:
        for start in range(0, self.rows, size):
            stop = min(start + size, self.rows)
            if self._own is None:
                ids = pa.array(np.arange(start, stop))
            else:
                ids = self._own.slice(start, stop - start)
            yield ids, self._slice(start, stop)

    @abstractmethod
    def _slice(self, start: int, stop: int) -> Tensor:
        """[stop − start, D]. The file is opened for each, so that no more of it stays mapped."""


class _Npy(_Plain):
    def __init__(self, path: Path, ids: Path | None) -> None:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim != 2 or array.dtype.kind != "f":
            raise DataError(
                f"{path} holds {array.dtype} of shape {list(array.shape)}; floats [N, D] are "
                "needed."
            )
        super().__init__(path, *array.shape)
        self._dtype = np.float64 if array.dtype.itemsize == 8 else np.float32
        self._name(ids)

    def _slice(self, start: int, stop: int) -> Tensor:
        mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return torch.from_numpy(np.array(mapped[start:stop], dtype=self._dtype, order="C"))


class _Safetensors(_Plain):
    def __init__(self, path: Path, id_tensor: str, vector_tensor: str, ids: Path | None) -> None:
        with safe_open(path, framework="pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            flat = [name for name, shape in shapes.items() if len(shape) == 2]
            if vector_tensor in flat:
                self._tensor = vector_tensor
            elif len(flat) == 1:
                self._tensor = flat[0]
            else:
                has = ", ".join(f"{n} {s}" for n, s in shapes.items()) or "none"
                raise DataError(
                    f"{path} has no tensor {vector_tensor!r} of two dims; its tensors are: {has}; "
                    "name the right one with --vector-column."
                )
            kind = file.get_slice(self._tensor)[:0].dtype
            if not kind.is_floating_point or kind.itemsize == 1:
                raise DataError(f"{path}: tensor {self._tensor!r} holds {kind}; floats are needed.")
            self._dtype = torch.float64 if kind == torch.float64 else torch.float32
            super().__init__(path, *shapes[self._tensor])
            if id_tensor in shapes:
                found = file.get_tensor(id_tensor)
                if found.shape != (self.rows,) or found.is_floating_point():
                    raise DataError(
                        f"{path}: tensor {id_tensor!r} is {found.dtype} {list(found.shape)}; "
                        f"{self.rows} integers are needed."
                    )
                self._own = pa.array(found.to(torch.int64).numpy())
        self._name(ids)

    def _slice(self, start: int, stop: int) -> Tensor:
        with safe_open(self.path, framework="pt") as file:
            found: Tensor = file.get_slice(self._tensor)[start:stop]
        return found.to(self._dtype)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
