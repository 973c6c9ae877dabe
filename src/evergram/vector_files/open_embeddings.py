"""Open a file of ids and vectors of any format: Parquet, Arrow, .npy or safetensors."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from safetensors import SafetensorError

from evergram.errors import DataError
from evergram.file_content import NPY_SIGN, unreadable
from evergram.vector_files.array_files import NpyVectors, SafetensorsVectors, companion
from evergram.vector_files.base import BLOCK, Block, EmbeddingFile
from evergram.vector_files.column_files import ArrowVectors, ParquetVectors

__all__ = ["BLOCK", "Block", "EmbeddingFile", "companion", "open_embeddings", "unknown_format"]

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc", ".arrows")
SUFFIXES = (*PARQUET, *ARROW, ".npy", ".safetensors")
# The first bytes of each format. A stream of Arrow begins with the mark of a message, a
# .safetensors with a length, which is none of the marks of other files.
_OF_ARROW = (b"ARROW1", b"FEA1", b"\xff\xff\xff\xff")
_SIGNS_OF = {
    **dict.fromkeys(PARQUET, (b"PAR1",)),
    ".npy": (NPY_SIGN,),
    ".safetensors": (b"safetensors",),
}


def open_embeddings(
    path: Path, *, id_column: str = "id", vector_column: str = "vector", ids: Path | None = None
) -> EmbeddingFile:
    """Open a file by its suffix: .parquet, .arrow (file or stream), .npy or .safetensors.

    Args:
        id_column, vector_column: names of the columns (safetensors: of the tensors); the only 2-D
            tensor of a safetensors file may have any name.
        ids: a text file with one id a line. None reads `NAME.ids.txt` beside a .npy or
            .safetensors file, or takes the numbers of the rows if there is none.
    Raises: DataError: the file is missing, damaged, empty, of another format, or lacks a column.
    """
    if not path.is_file():
        what = (
            "is a folder; give one of its files"
            if path.is_dir()
            else "is not there; give the path of a file of vectors"
        )
        raise DataError(f"{path} {what}.")
    suffix = path.suffix.lower()
    if ids is not None and suffix in (*PARQUET, *ARROW):
        raise DataError(
            f"{path} has its ids in its column {id_column!r}; a file of ids goes with .npy or "
            ".safetensors."
        )
    try:
        if suffix in PARQUET:
            return ParquetVectors(path, id_column, vector_column)
        if suffix in ARROW:
            return ArrowVectors(path, id_column, vector_column)
        if suffix == ".npy":
            return NpyVectors(path, ids)
        if suffix == ".safetensors":
            return SafetensorsVectors(path, id_column, vector_column, ids)
    except (OSError, ValueError, EOFError, pa.ArrowException, SafetensorError) as error:
        if isinstance(error, DataError):
            raise
        raise unreadable(path, error, *_SIGNS_OF.get(suffix, _OF_ARROW)) from error
    raise unknown_format(path)


def unknown_format(path: Path) -> DataError:
    """Return the error about a file of an unknown format."""
    known = ", ".join(SUFFIXES)
    if path.suffix.lower() == ".csv":
        return DataError(
            f"{path}: vectors are written as CSV for other programs, and not read from it; give a "
            f"file that ends in one of {known}."
        )
    return DataError(f"{path} is of no known format; the known ones end in {known}.")
