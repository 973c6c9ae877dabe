"""Write ids and vectors block by block, in every format that is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.lib import format as npy
from torch import Tensor

from evergram.atomic_files import replacing_group
from evergram.errors import DataError, reason_and_remedy
from evergram.vector_files.open_embeddings import (
    ARROW,
    ID_TYPE,
    PARQUET,
    SUFFIXES,
    Block,
    companion,
    provenance_file,
    unknown_format,
)


def vectors_to_arrow(vectors: Tensor) -> pa.FixedSizeListArray:
    """Return [N, D] as an Arrow array of N fixed-size lists of float32."""
    flat = np.ascontiguousarray(vectors.float().cpu().numpy()).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors.shape[1])


def write_embeddings(
    path: Path,
    blocks: Iterable[Block],
    provenance: Mapping[str, str] | None = None,
) -> int:
    """Write blocks of ids and vectors [b, D] as Parquet, with provenance as metadata, and return
    the number of rows; the file appears whole or not at all."""
    return _write_columns(path, blocks, provenance or {}, ".parquet")


def read_embeddings(path: Path) -> tuple[pa.Array, Tensor]:
    """Return ids [N] and vectors [N, D] of a file in the layout of `write_embeddings`."""
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
    suffix, provenance = path.suffix.lower(), provenance or {}
    if suffix in (*PARQUET, *ARROW):
        return _write_columns(path, blocks, provenance, suffix)
    return _write_npy(path, blocks, provenance, named)


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
    path: Path, blocks: Iterable[Block], provenance: Mapping[str, str], suffix: str
) -> int:
    """Write a file of columns, block by block: Parquet or Arrow."""
    writer, rows = None, 0
    with _replacing(path) as parts, ExitStack() as closing:
        for ids, vectors in blocks:
            columns = {"id": ids, "vector": vectors_to_arrow(vectors)}
            table = pa.table(columns, metadata=provenance or None)
            if writer is None:
                writer = closing.enter_context(_writer(parts[path], table.schema, suffix))
            writer.write_table(table)
            rows += table.num_rows
        closing.close()
        _refuse_none(path, rows)
    return rows


def _writer(part: Path, schema: pa.Schema, suffix: str) -> Any:
    if suffix in PARQUET:
        # Floats do not compress, and a dictionary of them only costs time.
        return pq.ParquetWriter(part, schema, compression="zstd", use_dictionary=False)
    return (pa.ipc.new_stream if suffix == ".arrows" else pa.ipc.new_file)(str(part), schema)


def _write_npy(
    path: Path, blocks: Iterable[Block], provenance: Mapping[str, str], named: bool
) -> int:
    """Write space for a header and the vectors, then the header, which needs the row count."""
    names, record = companion(path), provenance_file(path)
    rows, dim, are_integers = 0, 0, True
    with _replacing(path, names, record) as parts:
        with (
            parts[path].open("wb") as file,
            parts[names].open("w", encoding="utf-8", newline="\n") as text,
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
            _refuse_none(path, rows)
            # NumPy pads a header of format 1.0 to 128 bytes for any row count.
            file.seek(0)
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
            npy.write_array_header_1_0(file, header)
        marks = {ID_TYPE: "int64" if are_integers else "string"} if named else {}
        if said := {**provenance, **marks}:
            parts[record].write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
        if not named:
            parts[names].unlink()
    return rows


def _refuse_none(path: Path, rows: int) -> None:
    if not rows:
        raise DataError(f"There are no embeddings to write to {path}.")


@contextmanager
def _replacing(path: Path, *beside: Path) -> Iterator[dict[Path, Path]]:
    """Yield paths to write to, as for `replacing_group`."""
    try:
        with replacing_group(path, *beside) as parts:
            yield parts
    except OSError as error:
        raise DataError(f"{path} cannot be written: {reason_and_remedy(error)}.") from error
