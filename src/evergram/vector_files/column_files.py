"""Files with a column of ids and a column of vectors: Parquet and Arrow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
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
from evergram.ids import first_missing, is_text, missing_sentence
from evergram.vector_files.base import Block, EmbeddingFile, sentence
from evergram.vector_files.provenance import provenance_in

# Bytes of a column that are read at once.
READ_AHEAD = 1 << 20
FLOATS = {pa.float16(): np.float32, pa.float32(): np.float32, pa.float64(): np.float64}


class ColumnVectors(EmbeddingFile):
    """A file with a column of ids and a column of vectors."""

    def __init__(
        self, path: Path, schema: pa.Schema, rows: int, id_column: str, vector_column: str
    ) -> None:
        for name, option in ((id_column, "--id-column"), (vector_column, "--vector-column")):
            if name not in schema.names:
                has = ", ".join(schema.names)
                raise DataError(
                    f"{path} has no column {name!r}; its columns are: {has}"
                    f"{did_you_mean(name, schema.names)}; "
                    f"name the right one with {option}."
                )
            if schema.names.count(name) > 1:
                raise DataError(f"{path} has two columns {name!r}; each needs a name of its own.")
        if not rows:
            # Before the types: of no rows a program may write columns of no type.
            raise DataError(f"{path} holds no vectors; it has no rows.")
        self._id, self._vector = id_column, vector_column
        self.column: str = vector_column
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
            raise DataError(f"{self.path} cannot be read: {sentence(error)}.") from error
