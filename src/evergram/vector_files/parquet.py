"""Embeddings in a Parquet file: column `id`, and column `vector`, a fixed-size list of float32."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from evergram.atomic_files import replacing_path
from evergram.errors import DataError
from evergram.system_errors import reason_and_remedy


def vectors_to_arrow(vectors: Tensor) -> pa.FixedSizeListArray:
    """Return [N, D] as an Arrow array of N fixed-size lists of float32."""
    flat = np.ascontiguousarray(vectors.float().cpu().numpy()).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors.shape[1])


def write_embeddings(
    path: Path,
    blocks: Iterable[tuple[pa.Array, Tensor]],
    provenance: Mapping[str, str] | None = None,
) -> int:
    """Write blocks of ids and vectors [b, D]; the file appears whole or not at all.

    Args:
        provenance: metadata of the schema, see `vector_files.provenance`.
    Returns: rows written.
    Raises: DataError: the folder cannot be written.
    """
    writer: pq.ParquetWriter | None = None
    rows = 0
    try:
        with replacing_path(path) as part:
            try:
                for ids, vectors in blocks:
                    columns = {"id": ids, "vector": vectors_to_arrow(vectors)}
                    table = pa.table(columns, metadata=provenance or None)
                    if writer is None:
                        # Floats do not compress, and a dictionary of them only costs time.
                        writer = pq.ParquetWriter(
                            part, table.schema, compression="zstd", use_dictionary=False
                        )
                    writer.write_table(table)
                    rows += table.num_rows
            finally:
                if writer is not None:
                    writer.close()
            if writer is None:
                raise DataError(f"There are no embeddings to write to {path}.")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {reason_and_remedy(error)}.") from error
    return rows


def read_embeddings(path: Path) -> tuple[pa.Array, Tensor]:
    """Return ids [N] and vectors [N, D] of a file in the layout of `write_embeddings`.

    Raises: DataError: the file is missing or has another layout.
    """
    try:
        table = pq.read_table(path, columns=["id", "vector"], memory_map=True)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise DataError(f"{path} is not a readable file of embeddings: {error}.") from error
    return to_block(table, path)


def to_block(table: pa.Table, path: Path) -> tuple[pa.Array, Tensor]:
    """Return ids [N] and vectors [N, D] of a table with columns `id` and `vector`.

    Args:
        path: of the table, for errors.
    Raises: DataError: the vectors are not fixed-size lists.
    """
    column = table["vector"]
    if not pa.types.is_fixed_size_list(column.type):
        raise DataError(f"{path}: column 'vector' is {column.type}; a fixed-size list is needed.")
    return table["id"].combine_chunks(), vectors_from_arrow(column)


def vectors_from_arrow(column: pa.ChunkedArray) -> Tensor:
    """Return a column of fixed-size lists as float32 [N, D]."""
    flat = pa.concat_arrays([c.flatten() for c in column.chunks]) if len(column) else pa.array([])
    values = flat.to_numpy(zero_copy_only=False).astype(np.float32)
    return torch.from_numpy(values.reshape(-1, column.type.list_size))
