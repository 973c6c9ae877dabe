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
from evergram.errors import DataError, reason_and_remedy
from evergram.file_content import NPY_SIGN, unreadable
from evergram.ids import (
    ids_of_text,
    is_text,
    refuse_missing,
    refuse_other_form,
    refuse_repeats,
)

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc", ".arrows")
SUFFIXES = (*PARQUET, *ARROW, ".npy")
# The first bytes of a file of Arrow; a stream begins with the mark of a message.
_OF_ARROW = (b"ARROW1", b"FEA1", b"\xff\xff\xff\xff")
FLOATS = {pa.float16(): np.float32, pa.float32(): np.float32, pa.float64(): np.float64}
# Rows held at once: 50 MB of 768 floats; and bytes of a column that are read at once.
BLOCK, READ_AHEAD = 16_384, 1 << 20
Block = tuple[pa.Array, Tensor]
T = TypeVar("T")
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
    try:
        content = json.loads(beside.read_bytes()) if beside.is_file() else {}
        return dict(content.items())
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(
            f"{beside} is not a JSON object of provenance ({error}); remove it, or write {path} "
            "again."
        ) from error


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
                raise self._error(start + row, ids[row], not_finite(vectors[row]))
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
                raise self._error(start + row, ids[row], not_finite(vectors[row], version))
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


def not_finite(vector: Tensor, version: int | None = None) -> str:
    """Return what a vector [D] that is not finite as float32 has, or one of finite numbers that is
    not finite once it is read as a version, for a sentence."""
    largest = float(vector[vector.abs().argmax()])
    if version is not None:
        return (
            f"has numbers as large as {largest:g}, and read as version {version} would have one "
            "that is too large for float32"
        )
    if bool(vector.isfinite().all()):
        return f"has a number too large for float32 ({largest:g})"
    return f"has a NaN or an infinity ({float(vector[~vector.isfinite()][0])})"


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
        record, beside = read_provenance_file(path), companion(path)
        self.provenance: dict[str, str] = provenance_in(record)
        self._dtype = np.float64 if array.dtype.itemsize == 8 else np.float32
        self.has_ids: bool = beside.is_file()
        if self.has_ids:
            self._ids = self._lines(beside, record.get(ID_TYPE))
        elif record.get(ID_TYPE):
            raise DataError(f"{beside} is missing, and {path} has its ids there; restore it.")
        else:
            self._ids = pa.array(np.arange(self.rows))

    def _lines(self, beside: Path, written: str | None) -> pa.Array:
        """Return the ids in the file beside it, which were `written` here as "int64" or "string",
        or by another program."""
        try:
            # Programs of Windows begin a file with a mark that is no part of the first id.
            encoding = "utf-8" if written == "string" else "utf-8-sig"
            lines = beside.read_text(encoding=encoding).removesuffix("\n").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise DataError(
                f"{beside} cannot be read as ids: {why}; give a text file of one id a line."
            ) from error
        if len(lines) != self.rows:
            both = f"{beside} has {len(lines)} ids and {self.path} {self.rows} vectors"
            raise DataError(f"{both}; one id a line is needed.")
        texts = pa.array(lines, pa.string())
        refuse_missing(texts, f"{beside} line", text_file=written != "string")
        ids = texts if written == "string" else ids_of_text(texts)
        if pa.types.is_floating(ids.type) or (written == "int64" and is_text(ids.type)):
            raise DataError(
                f"The ids of {beside}, such as {texts[0]}, are numbers with a decimal point, or no "
                "integers as those that were written; write integers, or texts that are no numbers."
            )
        return ids

    def ids(self) -> pa.Array:
        return self._ids

    def _read(self, size: int) -> Iterator[Block]:
        for start in range(0, self.rows, size):
            # Opened anew, so that little of it stays mapped.
            mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)
            rows = np.array(mapped[start : start + size], dtype=self._dtype, order="C")
            yield self._ids.slice(start, len(rows)), torch.from_numpy(rows)


class ColumnVectors(EmbeddingFile):
    """A file of Parquet or Arrow, with a column of ids and a column of vectors."""

    def __init__(self, path: Path, id_column: str, vector_column: str) -> None:
        self.path, self._is_parquet = path, path.suffix.lower() in PARQUET
        with self._opened() as file:
            schema: pa.Schema = file.schema_arrow if self._is_parquet else file.schema
            rows = file.metadata.num_rows if self._is_parquet else 0
        for name, role in ((id_column, "id"), (vector_column, "vector")):
            if schema.names.count(name) != 1:
                has = ", ".join(schema.names)
                several = "two columns" if name in schema.names else "no column"
                raise DataError(
                    f"{path} has {several} {name!r}; its columns are: {has}"
                    f"{did_you_mean(name, schema.names)}; "
                    f"name the right one with --column {role}=NAME."
                )
        self._names, self._id, self._vector = schema.names, id_column, vector_column
        if not self._is_parquet:
            rows = sum(batch.num_rows for batch in self._batches(1 << 30, [id_column]))
        if not rows:
            # Before the types: of no rows a program may write columns of no type.
            raise DataError(f"{path} holds no vectors; it has no rows.")
        self.column: str = vector_column
        kind, id_kind = (schema.field(name).type for name in (vector_column, id_column))
        fixed = pa.types.is_fixed_size_list(kind)
        is_list = fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not is_list or kind.value_type not in FLOATS:
            raise DataError(
                f"{path}: column {vector_column!r} is {kind}; lists of float16, float32 or float64 "
                "are needed."
            )
        self._dtype = FLOATS[kind.value_type]
        if pa.types.is_dictionary(id_kind):
            id_kind = id_kind.value_type
        self._id_type = pa.int64() if pa.types.is_integer(id_kind) else pa.string()
        if not (pa.types.is_integer(id_kind) or is_text(id_kind)):
            raise DataError(f"{path}: column {id_column!r} is {id_kind}; ids are integers or text.")
        dim = kind.list_size if fixed else 0
        if not fixed:
            first = next(self._batches(1, [vector_column]))[vector_column][0]
            dim = len(first) if first.is_valid else 1  # a missing one is refused when it is read
        super().__init__(path, rows, dim)
        self.provenance: dict[str, str] = provenance_in(schema.metadata)

    @contextmanager
    def _opened(self, **options: Any) -> Iterator[Any]:
        """Yield Arrow's reader; the first bytes tell a file of Arrow from a stream."""
        if self._is_parquet:
            # Pre-buffered, row groups that were read stay in memory until the end of the file;
            # without a buffer, a column of a whole row group is read at once.
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
                count = getattr(file, "num_record_batches", None)  # None of a stream
                for batch in file if count is None else map(file.get_batch, range(count)):
                    for start in range(0, batch.num_rows, size):
                        yield batch.slice(start, size)
        except (OSError, pa.ArrowException) as error:
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise DataError(f"{self.path} cannot be read: {why}.") from error

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
        refuse_missing(column, f"{self.path} row", start=start)
        try:
            return column.cast(self._id_type)
        except pa.ArrowInvalid as error:
            raise DataError(f"{self.path}: an id is no 64-bit integer: {error}.") from error

    def _vectors(self, column: pa.Array, ids: pa.Array, start: int) -> Tensor:
        def refuse(row: int, what: str) -> None:
            if row >= 0:
                raise self._error(start + row, ids[row], what)

        refuse(pc.index(column.is_null(), True).as_py(), "is missing")
        if not pa.types.is_fixed_size_list(column.type):
            lengths = pc.list_value_length(column)
            row = pc.index(pc.not_equal(lengths, self.dim), True).as_py()
            refuse(row, f"has {lengths[row]} numbers, and the first row has {self.dim}")
        values = column.flatten()
        refuse(pc.index(values.is_null(), True).as_py() // self.dim, "holds a null")
        # Copied, as Arrow's memory must not be written to.
        flat = np.array(values.to_numpy(zero_copy_only=False), dtype=self._dtype)
        return torch.from_numpy(flat.reshape(-1, self.dim))


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
    if suffix not in SUFFIXES:
        raise unknown_format(path)
    try:
        if suffix == ".npy":
            return NpyVectors(path)
        return ColumnVectors(path, id_column, vector_column)
    except DataError:
        raise
    except (OSError, ValueError, EOFError, pa.ArrowException) as error:
        own = (NPY_SIGN,) if suffix == ".npy" else (b"PAR1",) if suffix in PARQUET else _OF_ARROW
        raise unreadable(path, error, *own) from error


def unknown_format(path: Path) -> DataError:
    known = ", ".join(SUFFIXES)
    return DataError(f"{path} is of no known format; the known ones end in {known}.")


# Files are written block by block, in every format that is read.


def vectors_to_arrow(vectors: Tensor) -> pa.FixedSizeListArray:
    """Return [N, D] as an Arrow array of N fixed-size lists of float32."""
    flat = np.ascontiguousarray(vectors.float().cpu().numpy()).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors.shape[1])


def read_embeddings(path: Path) -> tuple[pa.Array, Tensor]:
    """Return ids [N] and vectors [N, D] of a Parquet file in the layout of `write_vectors`."""
    try:
        table = pq.read_table(path, columns=["id", "vector"], memory_map=True)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise DataError(f"{path} is not a readable file of embeddings: {error}.") from error
    return to_block(table, path)


def to_block(table: pa.Table, path: Path) -> tuple[pa.Array, Tensor]:
    """Return ids [N] and vectors [N, D] of a table with columns `id` and `vector`."""
    column = table["vector"]
    if not pa.types.is_fixed_size_list(column.type):
        raise DataError(f"{path}: column 'vector' is {column.type}; a fixed-size list is needed.")
    return table["id"].combine_chunks(), vectors_from_arrow(column)


def vectors_from_arrow(column: pa.ChunkedArray) -> Tensor:
    """Return a column of fixed-size lists as float32 [N, D]."""
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
    """Write ids and float32 vectors in their order, in the format of the path's suffix.

    The file appears whole or not at all, and never with another's ids or provenance. Parquet and
    Arrow have columns `id` and `vector`. The ids of an .npy file are written beside it, to
    `NAME.ids.txt`.

    Args:
        blocks: ids [b] and vectors [b, D].
        provenance: of `provenance_of`; written into the file's metadata, or beside it into
            `NAME.npy.json`.
        overwrite: True replaces an existing file, and those beside it.
        named: False if the ids are only the numbers of rows: an .npy file then gets no ids beside
            it, as a reader would take them for ids of a version.
    Returns: rows written.
    Raises: DataError: the format is unknown, the folder cannot be written, there is nothing to
        write, a file exists already, or an id that is to be a line has a line break.
    """
    check_writable(path, overwrite=overwrite)
    is_npy, said = path.suffix.lower() == ".npy", provenance or {}
    beside = (companion(path), provenance_file(path)) if is_npy else ()
    try:
        with replacing_group(path, *beside) as parts:
            if is_npy:
                rows = _write_npy(path, parts, blocks, said, named)
            else:
                rows = _write_columns(path, parts[path], blocks, said)
            if not rows:
                raise DataError(f"There are no embeddings to write to {path}.")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {reason_and_remedy(error)}.") from error
    return rows


def check_writable(path: Path, *, overwrite: bool = True) -> None:
    """Refuse a path that cannot be written, before any work is done."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the path of a file to write.")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise unknown_format(path)
    if not path.parent.is_dir():
        raise DataError(f"{path.parent} is not there; make the folder first.")
    beside = [companion(path), provenance_file(path)] if suffix == ".npy" else []
    for there in [path, *beside]:
        if not overwrite and there.exists():
            raise DataError(
                f"{there} is there already and is not written over; give another name, or --force "
                "(in Python overwrite=True)."
            )


def _write_columns(
    path: Path, part: Path, blocks: Iterable[Block], provenance: Mapping[str, str]
) -> int:
    """Write a file of columns, block by block: Parquet or Arrow."""
    writer, rows = None, 0
    with ExitStack() as closing:
        for ids, vectors in blocks:
            columns = {"id": ids, "vector": vectors_to_arrow(vectors)}
            table = pa.table(columns, metadata=provenance or None)
            if writer is None:
                made: Any
                if path.suffix.lower() in PARQUET:
                    # Floats do not compress, and a dictionary of them only costs time.
                    options = {"compression": "zstd", "use_dictionary": False}
                    made = pq.ParquetWriter(part, table.schema, **options)
                else:
                    is_stream = path.suffix.lower() == ".arrows"
                    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
                    made = new(str(part), table.schema)
                writer = closing.enter_context(made)
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
    """Write space for a header and the vectors, then the header, which needs the row count."""
    names = parts[companion(path)]
    rows, dim, are_integers = 0, 0, True
    with (
        parts[path].open("wb") as file,
        names.open("w", encoding="utf-8", newline="\n") as text,
    ):
        file.write(bytes(NPY_HEADER))
        for ids, vectors in blocks:
            are_integers = are_integers and pa.types.is_integer(ids.type)
            lines = [str(i) for i in ids.to_pylist()]
            for bad in (line for line in lines if "\n" in line or "\r" in line):
                why = f"id {bad!r} has a line break, and ids would be lines of a text file"
                raise DataError(f"{path}: {why}; write Parquet or Arrow.")
            text.writelines(line + "\n" for line in lines)
            floats = np.ascontiguousarray(vectors.float().cpu().numpy(), dtype="<f4")
            file.write(floats.data.cast("B"))
            rows, dim = rows + len(ids), vectors.shape[1]
        # NumPy pads a header of format 1.0 to 128 bytes for any row count.
        file.seek(0)
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
        npy.write_array_header_1_0(file, header)
    marks = {ID_TYPE: "int64" if are_integers else "string"} if named else {}
    if said := {**provenance, **marks}:
        content = json.dumps(said, indent=2) + "\n"
        parts[provenance_file(path)].write_text(content, encoding="utf-8")
    if not named:
        names.unlink()
    return rows


# Two files of vectors of the same objects, side by side.


def ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the same items; a thread makes each ahead of its use, so one more is in memory."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, source, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, source, end)
            yield item  # type: ignore[misc]


class Pairing:
    """The objects that two files have in common, in the order of `ids`, and their two vectors.
    Vectors are read in blocks, from both files at once if the common objects are `in_order`;
    otherwise those of the smaller file are first copied to a temporary file (in $TMPDIR). It holds
    the ids of both files and eight bytes for each common object in memory."""

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
        place = pc.fill_null(pc.index_in(lead, value_set=other), -1)
        place = place.to_numpy(zero_copy_only=False)
        self._kept = place >= 0
        # Rows of the other file, in the leading file's order.
        self._place = place[self._kept].astype(np.int64)
        if not len(self._place):
            raise DataError(
                f"{old.path} and {new.path} have no id in common (the first has ids such as "
                f"{old_ids[0].as_py()!r}, the second such as {new_ids[0].as_py()!r}); "
                "vectors of the same objects are needed."
            )
        self.ids: pa.Array = lead.filter(pa.array(self._kept))
        self.in_order: bool = bool((np.diff(self._place) > 0).all())
        self.only_old: int = old.rows - len(self)
        self.only_new: int = new.rows - len(self)

    def __len__(self) -> int:
        return len(self.ids)

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield old [b, D_old] and new [b, D_new] of all common objects, in the order of `ids`."""
        lead, other = (self._old, self._new) if self._old_leads else (self._new, self._old)
        leading = _kept(lead, self._kept, size)
        if self.in_order:
            wanted = np.zeros(other.rows, dtype=bool)
            wanted[self._place] = True
            following = _kept(other, wanted, size)
        else:
            following = _in_order_of(other, self._place, size)
        for one, two in zip(leading, following, strict=True):
            yield (one, two) if self._old_leads else (two, one)


def _kept(file: EmbeddingFile, kept: np.ndarray, size: int) -> Iterator[Tensor]:
    """Yield the rows of a file that `kept` marks, in blocks of exactly `size` except the last."""
    waiting: list[Tensor] = []
    start = number = 0
    for _, vectors in file.blocks(size):
        mask = kept[start : start + len(vectors)]
        start += len(vectors)
        waiting.append(vectors if mask.all() else vectors[torch.from_numpy(mask)])
        number += len(waiting[-1])
        if number >= size:
            whole = torch.cat(waiting) if len(waiting) > 1 else waiting[0]
            yield whole[:size]
            waiting, number = [whole[size:]], number - size
    if number:
        yield torch.cat(waiting)


def _in_order_of(file: EmbeddingFile, rows: np.ndarray, size: int) -> Iterator[Tensor]:
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
            f"{file.path} is in another order, and its temporary copy in {tempfile.gettempdir()} "
            f"cannot be written: {error.strerror or error}; set TMPDIR to a folder with room."
        ) from error
