"""Read and write files of ids and vectors, block by block: Parquet, Arrow or .npy."""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.lib import format as npy
from torch import Tensor

from evergram.atomic_files import replacing_group
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, clause_of, reason_and_remedy
from evergram.file_content import NPY_SIGN, unreadable
from evergram.ids import ids_of_text, is_text, refuse_missing, refuse_other_form, refuse_repeats

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc", ".arrows")
SUFFIXES = (*PARQUET, *ARROW, ".npy")
# The first bytes of an Arrow file or stream.
_ARROW_SIGNS = (b"ARROW1", b"FEA1", b"\xff\xff\xff\xff")
FLOATS = {pa.float16(): np.float32, pa.float32(): np.float32, pa.float64(): np.float64}
# Rows in a block (50 MB with 768 dims), and bytes of a column to read at once.
BLOCK, READ_AHEAD = 16_384, 1 << 20
Block = tuple[pa.Array, Tensor]
T = TypeVar("T")
# The version whose space the vectors are in, and the version that embedded the objects.
FINGERPRINT = "evergram.fingerprint"
COMPUTED_FROM = "evergram.computed_from"
# The text encoder that made the vectors: JSON of `texts.record.TextEncoderRecord`.
TEXT_ENCODER = "evergram.text_encoder"
# The type of a .npy file's ids, which are in a separate text file: "int64" or "string".
ID_TYPE = "evergram.id_type"


def provenance_of(fingerprint: str, computed_from: str) -> dict[str, str]:
    """Return the metadata to write with vectors, under the two keys above."""
    return {FINGERPRINT: fingerprint, COMPUTED_FROM: computed_from}


def provenance_in(metadata: Mapping[Any, Any] | None) -> dict[str, str]:
    """Select the provenance from a file's metadata, whose keys and values are bytes or text."""
    provenance = {}
    for key, value in (metadata or {}).items():
        name = key.decode(errors="replace") if isinstance(key, bytes) else str(key)
        if name in (FINGERPRINT, COMPUTED_FROM, TEXT_ENCODER):
            text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
            provenance[name] = text
    return provenance


def provenance_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def read_provenance_file(path: Path) -> dict[str, Any]:
    """Read the provenance file of `path`; return an empty dict if it does not exist."""
    file = provenance_file(path)
    try:
        content = json.loads(file.read_bytes()) if file.is_file() else {}
        return dict(content.items())
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(
            f"{file} is not a JSON object of provenance ({error}); remove it, or write {path} "
            "again."
        ) from error


class EmbeddingFile(ABC):
    """A file of N ids and vectors [N, D], which can be read repeatedly.

    Args:
        rows, dim: N and D.
    Attributes:
        provenance: the version of the vectors according to the file, see `provenance_of`.
        has_ids: False if the ids are row numbers.
        column: the name of the vector column; None for a format without columns.
    Raises: DataError: the file has no rows or no dims.
    """

    has_ids = True
    column: str | None = None

    def __init__(self, path: Path, rows: int, dim: int) -> None:
        if not rows or not dim:
            raise DataError(f"{path} has no vectors; it needs at least one row and one dim.")
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
        """Yield blocks of at most `size` rows, unchecked."""

    def blocks(self, size: int = BLOCK) -> Iterator[Block]:
        """Yield ids [b] and vectors [b, D], b ≤ size, in float64 if the file has it, else float32.

        Raises: DataError: a vector is missing, has another length, or has a number that is not
            finite as float32; the error names the row and its id.
        """
        start = 0
        for ids, vectors in self._read(size):
            # Check as float32, the type in which vectors are published.
            row = first_not_finite(vectors.float())
            if row is not None:
                raise self._error(start + row, ids[row], not_finite(vectors[row]))
            yield ids, vectors
            start += len(ids)

    def read_as(
        self, read: Callable[[Tensor], Tensor], version: int, blocks: Iterable[Block], start: int
    ) -> Iterator[Block]:
        """Yield blocks with their vectors mapped by `read` to a version, [b, D_j], and refuse
        numbers that are not finite as float32. `start` is the first row of the blocks."""
        for ids, vectors in blocks:
            mapped = read(vectors)
            row = first_not_finite(mapped.float())
            if row is not None:
                raise self._error(start + row, ids[row], not_finite(vectors[row], version))
            yield ids, mapped
            start += len(ids)

    def _error(self, row: int, id_: pa.Scalar, what: str) -> DataError:
        vector = "its vector" if self.column is None else f"its vector (column {self.column!r})"
        return DataError(
            f"{self.path} row {row + 1} (id {id_.as_py()!r}): {vector} {what}; "
            "correct the file or leave the row out."
        )


def first_not_finite(vectors: Tensor) -> int | None:
    """Return the first row of [N, D] that has a NaN or an infinity; None if all are finite."""
    # If the sum is finite, all numbers are. The sum may also overflow; then check each row.
    if bool(vectors.sum().isfinite()):
        return None
    bad = (~vectors.isfinite()).any(1).nonzero()
    return int(bad[0]) if len(bad) else None


def not_finite(vector: Tensor, version: int | None = None) -> str:
    """Return a clause about a non-finite number of a vector [D], stored or mapped to `version`."""
    largest = float(vector[vector.abs().argmax()])
    if version is not None:
        return (
            f"has numbers as large as {largest:g}, and reading it as version {version} gives a "
            "number too large for float32"
        )
    if bool(vector.isfinite().all()):
        return f"has a number too large for float32 ({largest:g})"
    return f"has a NaN or an infinity ({float(vector[~vector.isfinite()][0])})"


def companion(path: Path) -> Path:
    """Return the path of the ids of a file without columns: `NAME.ids.txt`, one id per line."""
    return path.with_suffix(".ids.txt")


class NpyVectors(EmbeddingFile):
    """A .npy file, with its ids in a text file next to it."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            start = file.read(len(NPY_SIGN))
        # np.load would try to read the file as a zip or a pickle.
        if start != NPY_SIGN:
            raise unreadable(path, ValueError("it is not a NumPy array"), NPY_SIGN)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim != 2 or array.dtype.kind != "f":
            what = f"{array.dtype} of shape {list(array.shape)}"
            raise DataError(f"{path} has {what}; it must have floats [N, D].")
        super().__init__(path, *array.shape)
        record, id_file = read_provenance_file(path), companion(path)
        self.provenance: dict[str, str] = provenance_in(record)
        self._dtype = np.float64 if array.dtype.itemsize == 8 else np.float32
        self.has_ids: bool = id_file.is_file()
        if self.has_ids:
            self._ids = self._lines(id_file, record.get(ID_TYPE))
        elif record.get(ID_TYPE):
            raise DataError(f"{id_file}, which has the ids of {path}, is missing; restore it.")
        else:
            self._ids = pa.array(np.arange(self.rows))

    def _lines(self, id_file: Path, id_type: str | None) -> pa.Array:
        """Read the ids, one per line; `id_type` is None if another program wrote them."""
        try:
            # "-sig" drops the byte-order mark that Windows programs write.
            encoding = "utf-8" if id_type == "string" else "utf-8-sig"
            lines = id_file.read_text(encoding=encoding).removesuffix("\n").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise DataError(
                f"{id_file} cannot be read as ids: {why}; give a text file with one id per line."
            ) from error
        if len(lines) != self.rows:
            both = f"{id_file} has {len(lines)} ids, but {self.path} has {self.rows} vectors"
            raise DataError(f"{both}; give one id per line.")
        texts = pa.array(lines, pa.string())
        refuse_missing(texts, f"{id_file} line", text_file=id_type != "string")
        ids = texts if id_type == "string" else ids_of_text(texts)
        if pa.types.is_floating(ids.type) or (id_type == "int64" and is_text(ids.type)):
            raise DataError(
                f"The ids in {id_file}, such as {texts[0]}, have a decimal point, or are not the "
                "integers that were written; give integers, or texts that are not numbers."
            )
        return ids

    def ids(self) -> pa.Array:
        return self._ids

    def _read(self, size: int) -> Iterator[Block]:
        for start in range(0, self.rows, size):
            # Map the file again for each block, so that memory stays small.
            mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)
            rows = np.array(mapped[start : start + size], dtype=self._dtype, order="C")
            yield self._ids.slice(start, len(rows)), torch.from_numpy(rows)


class ColumnVectors(EmbeddingFile):
    """A Parquet or Arrow file with a column of ids and a column of vectors."""

    def __init__(self, path: Path, id_column: str, vector_column: str) -> None:
        self.path, self._is_parquet = path, path.suffix.lower() in PARQUET
        with self._opened() as file:
            schema: pa.Schema = file.schema_arrow if self._is_parquet else file.schema
            rows = file.metadata.num_rows if self._is_parquet else 0
        for name, role in ((id_column, "id"), (vector_column, "vector")):
            if schema.names.count(name) != 1:
                names = ", ".join(schema.names)
                count = "two columns" if name in schema.names else "no column"
                raise DataError(
                    f"{path} has {count} {name!r}; its columns are: {names}"
                    f"{did_you_mean(name, schema.names)}; "
                    f"name the right one with --column {role}=NAME."
                )
        self._names, self._id, self._vector = schema.names, id_column, vector_column
        if not self._is_parquet:
            rows = sum(batch.num_rows for batch in self._batches(1 << 30, [id_column]))
        if not rows:
            # Check this before the types: an empty file's columns may have the type null.
            raise DataError(f"{path} has no vectors; it has no rows.")
        self.column: str = vector_column
        kind, id_kind = (schema.field(name).type for name in (vector_column, id_column))
        fixed = pa.types.is_fixed_size_list(kind)
        is_list = fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not is_list or kind.value_type not in FLOATS:
            raise DataError(
                f"{path}: column {vector_column!r} is {kind}; it must be lists of float16, float32 "
                "or float64."
            )
        self._dtype = FLOATS[kind.value_type]
        if pa.types.is_dictionary(id_kind):
            id_kind = id_kind.value_type
        self._id_type = pa.int64() if pa.types.is_integer(id_kind) else pa.string()
        if not (pa.types.is_integer(id_kind) or is_text(id_kind)):
            raise DataError(
                f"{path}: column {id_column!r} is {id_kind}; ids must be integers or text."
            )
        dim = kind.list_size if fixed else 0
        if not fixed:
            first = next(self._batches(1, [vector_column]))[vector_column][0]
            dim = len(first) if first.is_valid else 1  # reading refuses a missing vector
        super().__init__(path, rows, dim)
        self.provenance: dict[str, str] = provenance_in(schema.metadata)

    @contextmanager
    def _opened(self, **options: Any) -> Iterator[Any]:
        """Yield Arrow's reader; the first bytes distinguish an Arrow file from a stream."""
        if self._is_parquet:
            # With pre_buffer, row groups stay in memory until the end of the file; without a
            # buffer, a column of a whole row group is read at once.
            with pq.ParquetFile(self.path, buffer_size=READ_AHEAD, pre_buffer=False) as file:
                yield file
            return
        with self.path.open("rb") as file:
            opener = pa.ipc.open_file if file.read(6) == b"ARROW1" else pa.ipc.open_stream
        with pa.memory_map(str(self.path)) as source:
            yield opener(source, options=pa.ipc.IpcReadOptions(**options))

    def _batches(self, size: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most `size` rows of these columns."""
        fields = [self._names.index(name) for name in columns]
        try:
            with self._opened(included_fields=fields) as file:
                if self._is_parquet:
                    yield from file.iter_batches(size, columns=columns)
                    return
                count = getattr(file, "num_record_batches", None)  # None for a stream
                for batch in file if count is None else map(file.get_batch, range(count)):
                    for start in range(0, batch.num_rows, size):
                        yield batch.slice(start, size)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.path} cannot be read: {clause_of(error)}.") from error

    def ids(self) -> pa.Array:
        batches = self._batches(1 << 20, [self._id])
        return pa.concat_arrays([self._ids_of(batch[self._id]) for batch in batches])

    def _read(self, size: int) -> Iterator[Block]:
        start = 0
        for batch in self._batches(size, [self._id, self._vector]):
            ids = self._ids_of(batch[self._id], start)
            yield ids, self._vectors(batch[self._vector], ids, start)
            start += len(ids)

    def _ids_of(self, column: pa.Array, start: int = 0) -> pa.Array:
        refuse_missing(column, f"{self.path} row", start=start)
        try:
            return column.cast(self._id_type)
        except pa.ArrowInvalid as error:
            raise DataError(f"{self.path}: an id is not a 64-bit integer: {error}.") from error

    def _vectors(self, column: pa.Array, ids: pa.Array, start: int) -> Tensor:
        def refuse(row: int, what: str) -> None:
            if row >= 0:
                raise self._error(start + row, ids[row], what)

        refuse(pc.index(column.is_null(), True).as_py(), "is missing")
        if not pa.types.is_fixed_size_list(column.type):
            lengths = pc.list_value_length(column)
            row = pc.index(pc.not_equal(lengths, self.dim), True).as_py()
            refuse(row, f"has {lengths[row]} numbers, but the first row has {self.dim}")
        values = column.flatten()
        refuse(pc.index(values.is_null(), True).as_py() // self.dim, "has a null")
        # Copy, because Arrow's memory is read-only.
        flat = np.array(values.to_numpy(zero_copy_only=False), dtype=self._dtype)
        return torch.from_numpy(flat.reshape(-1, self.dim))


def open_embeddings(
    path: Path, *, id_column: str = "id", vector_column: str = "vector"
) -> EmbeddingFile:
    """Open a file by its suffix: .parquet, .arrow (file or stream) or .npy. The ids of a .npy file
    are in `NAME.ids.txt` next to it; without that file they are row numbers.

    Raises: DataError: the file is missing, damaged, empty, of an unknown format, or lacks a column.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder; give one of its files.")
    if not path.is_file():
        raise DataError(f"{path} does not exist; give the path of a file of vectors.")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise unknown_format(path)
    try:
        if suffix == ".npy":
            return NpyVectors(path)
        return ColumnVectors(path, id_column, vector_column)
    except DataError:
        raise
    except (OSError, ValueError, EOFError, pa.ArrowException) as error:
        signs = (NPY_SIGN,) if suffix == ".npy" else _ARROW_SIGNS
        raise unreadable(path, error, *((b"PAR1",) if suffix in PARQUET else signs)) from error


def unknown_format(path: Path) -> DataError:
    suffixes = ", ".join(SUFFIXES)
    return DataError(f"{path} has an unsupported format; supported suffixes are {suffixes}.")


def vectors_to_arrow(vectors: Tensor) -> pa.FixedSizeListArray:
    """Convert [N, D] to an Arrow array of N fixed-size lists of float32."""
    flat = np.ascontiguousarray(vectors.float().cpu().numpy()).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors.shape[1])


def read_embeddings(path: Path) -> tuple[pa.Array, Tensor]:
    """Read ids [N] and vectors [N, D] from a Parquet file that `write_vectors` wrote."""
    try:
        table = pq.read_table(path, columns=["id", "vector"], memory_map=True)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise DataError(f"{path} is not a readable file of embeddings: {error}.") from error
    return to_block(table, path)


def to_block(table: pa.Table, path: Path) -> tuple[pa.Array, Tensor]:
    """Return ids [N] and vectors [N, D] of a table with columns `id` and `vector`."""
    column = table["vector"]
    if not pa.types.is_fixed_size_list(column.type):
        raise DataError(f"{path}: column 'vector' is {column.type}; it must be a fixed-size list.")
    return table["id"].combine_chunks(), vectors_from_arrow(column)


def vectors_from_arrow(column: pa.ChunkedArray) -> Tensor:
    """Convert a column of fixed-size lists to float32 [N, D]."""
    flat = pa.concat_arrays([c.flatten() for c in column.chunks]) if len(column) else pa.array([])
    values = flat.to_numpy(zero_copy_only=False).astype(np.float32)
    return torch.from_numpy(values.reshape(-1, column.type.list_size))


NPY_HEADER = 128


def write_vectors(
    path: Path,
    blocks: Iterable[Block],
    provenance: Mapping[str, str] | None = None,
    *,
    overwrite: bool = True,
    named: bool = True,
) -> int:
    """Write ids and float32 vectors in order, in the format of the path's suffix.

    The file and its companion files are replaced together, atomically. Parquet and Arrow files have
    columns `id` and `vector`. The ids of a .npy file are written to `NAME.ids.txt`.

    Args:
        blocks: ids [b] and vectors [b, D].
        provenance: see `provenance_of`; written to the file's metadata, or to `NAME.npy.json`.
        overwrite: True replaces an existing file and its companion files.
        named: False if the ids are row numbers: a .npy file then gets no file of ids, because a
            reader would take them for the ids of a version.
    Returns: the number of rows written.
    Raises: DataError: the format is unknown, the folder cannot be written, there is nothing to
        write, a file exists already, or an id for a text file has a line break.
    """
    check_writable(path, overwrite=overwrite)
    is_npy, provenance = path.suffix.lower() == ".npy", provenance or {}
    companions = (companion(path), provenance_file(path)) if is_npy else ()
    try:
        with replacing_group(path, *companions) as parts:
            if is_npy:
                rows = _write_npy(path, parts, blocks, provenance, named)
            else:
                rows = _write_columns(path, parts[path], blocks, provenance)
            if not rows:
                raise DataError(f"There are no embeddings to write to {path}.")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {reason_and_remedy(error)}.") from error
    return rows


def check_writable(path: Path, *, overwrite: bool = True) -> None:
    """Raise a DataError if a path cannot be written."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the path of a file to write.")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise unknown_format(path)
    if not path.parent.is_dir():
        raise DataError(f"The folder {path.parent} does not exist; create it first.")
    companions = [companion(path), provenance_file(path)] if suffix == ".npy" else []
    for file in [path, *companions]:
        if not overwrite and file.exists():
            raise DataError(
                f"{file} already exists; give another name, or replace it with --force (in Python "
                "overwrite=True)."
            )


def _write_columns(
    path: Path, part: Path, blocks: Iterable[Block], provenance: Mapping[str, str]
) -> int:
    """Write a Parquet or Arrow file block by block."""
    writer: Any = None
    rows = 0
    with ExitStack() as closing:
        for ids, vectors in blocks:
            columns = {"id": ids, "vector": vectors_to_arrow(vectors)}
            table = pa.table(columns, metadata=provenance or None)
            if writer is None:
                if path.suffix.lower() in PARQUET:
                    # Floats do not repeat, so a dictionary would only cost time.
                    options = {"compression": "zstd", "use_dictionary": False}
                    writer = pq.ParquetWriter(part, table.schema, **options)
                else:
                    is_stream = path.suffix.lower() == ".arrows"
                    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
                    writer = new(str(part), table.schema)
                closing.enter_context(writer)
            writer.write_table(table)
            rows += table.num_rows
    return rows


def _write_npy(
    path: Path,
    parts: Mapping[Path, Path],
    blocks: Iterable[Block],
    provenance: Mapping[str, str],
    named: bool,
) -> int:
    """Write a .npy file; the header is written last, because it needs the row count."""
    id_file = parts[companion(path)]
    rows, dim, are_integers = 0, 0, True
    with (
        parts[path].open("wb") as file,
        id_file.open("w", encoding="utf-8", newline="\n") as text,
    ):
        file.write(bytes(NPY_HEADER))
        for ids, vectors in blocks:
            are_integers = are_integers and pa.types.is_integer(ids.type)
            lines = [str(i) for i in ids.to_pylist()]
            for bad in (line for line in lines if "\n" in line or "\r" in line):
                why = f"id {bad!r} has a line break, but ids are written as lines of a text file"
                raise DataError(f"{path}: {why}; write Parquet or Arrow.")
            text.writelines(line + "\n" for line in lines)
            floats = np.ascontiguousarray(vectors.float().cpu().numpy(), dtype="<f4")
            file.write(floats.data.cast("B"))
            rows, dim = rows + len(ids), vectors.shape[1]
        # NumPy pads a header of format 1.0 to 128 bytes for any row count.
        file.seek(0)
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
        npy.write_array_header_1_0(file, header)
    id_type = {ID_TYPE: "int64" if are_integers else "string"} if named else {}
    if metadata := {**provenance, **id_type}:
        content = json.dumps(metadata, indent=2) + "\n"
        parts[provenance_file(path)].write_text(content, encoding="utf-8")
    if not named:
        id_file.unlink()
    return rows


def ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items; a thread computes the next one meanwhile, so one more is in memory."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(next, source, end)
        while (item := pending.result()) is not end:
            pending = thread.submit(next, source, end)
            yield item  # type: ignore[misc]


class Pairing:
    """The objects that two files have in common, in the order of `ids`, and their two vectors.

    If both files have them in the same order (`in_order`), they are read in parallel, in blocks;
    otherwise the smaller file is first copied to a temporary file (in $TMPDIR). Memory: the ids of
    both files and eight bytes for each common object."""

    def __init__(self, old: EmbeddingFile, new: EmbeddingFile) -> None:
        old_ids, new_ids = old.ids(), new.ids()
        if old_ids.type != new_ids.type:
            old_ids, new_ids = old_ids.cast(pa.string()), new_ids.cast(pa.string())
        for file, ids in ((old, old_ids), (new, new_ids)):
            refuse_repeats(ids, str(file.path))
        self._old, self._new = old, new
        self._old_leads = old.rows * old.dim > new.rows * new.dim
        lead, other = (old_ids, new_ids) if self._old_leads else (new_ids, old_ids)
        refuse_other_form(old_ids, new_ids, str(old.path), str(new.path))
        rows = pc.fill_null(pc.index_in(lead, value_set=other), -1)
        rows = rows.to_numpy(zero_copy_only=False)
        self._is_common = rows >= 0
        # Rows of the other file, in the leading file's order.
        self._other_rows = rows[self._is_common].astype(np.int64)
        if not len(self._other_rows):
            raise DataError(
                f"{old.path} and {new.path} have no ids in common (the first has ids such as "
                f"{old_ids[0].as_py()!r}, the second such as {new_ids[0].as_py()!r}); "
                "give vectors of the same objects."
            )
        self.ids: pa.Array = lead.filter(pa.array(self._is_common))
        self.in_order: bool = bool((np.diff(self._other_rows) > 0).all())
        self.only_old: int = old.rows - len(self)
        self.only_new: int = new.rows - len(self)

    def __len__(self) -> int:
        return len(self.ids)

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the old [b, D_old] and new [b, D_new] vectors of common objects, as in `ids`."""
        lead, other = (self._old, self._new) if self._old_leads else (self._new, self._old)
        lead_blocks = _selected(lead, self._is_common, size)
        if self.in_order:
            is_common = np.zeros(other.rows, dtype=bool)
            is_common[self._other_rows] = True
            other_blocks = _selected(other, is_common, size)
        else:
            other_blocks = _reordered(other, self._other_rows, size)
        for a, b in zip(lead_blocks, other_blocks, strict=True):
            yield (a, b) if self._old_leads else (b, a)


def _selected(file: EmbeddingFile, mask: np.ndarray, size: int) -> Iterator[Tensor]:
    """Yield the rows of a file where `mask` is True, in blocks of exactly `size`, but the last."""
    pending: list[Tensor] = []
    start = count = 0
    for _, vectors in file.blocks(size):
        in_block = mask[start : start + len(vectors)]
        start += len(vectors)
        pending.append(vectors if in_block.all() else vectors[torch.from_numpy(in_block)])
        count += len(pending[-1])
        if count >= size:
            joined = torch.cat(pending) if len(pending) > 1 else pending[0]
            yield joined[:size]
            pending, count = [joined[size:]], count - size
    if count:
        yield torch.cat(pending)


def _reordered(file: EmbeddingFile, rows: np.ndarray, size: int) -> Iterator[Tensor]:
    """Yield the given rows of a file in blocks, by way of a temporary file."""
    try:
        with tempfile.TemporaryFile() as spool:
            kind = np.dtype(np.float32)
            for _, vectors in file.blocks(size):
                array = vectors.numpy()
                kind = array.dtype
                spool.write(array.data)
            spool.flush()
            mapped = np.memmap(spool, dtype=kind, mode="r", shape=(file.rows, file.dim))
            for start in range(0, len(rows), size):
                yield torch.from_numpy(np.array(mapped[rows[start : start + size]]))
    except OSError as error:
        raise DataError(
            f"{file.path} has another order of ids, and its temporary copy in "
            f"{tempfile.gettempdir()} cannot be written: {error.strerror or error}; set TMPDIR to "
            "a folder with more space."
        ) from error
