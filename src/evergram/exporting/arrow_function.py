"""`ArrowFunction`: a view of a lineage as a function on Arrow batches, for engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from evergram.compatibility.chain import Chain
from evergram.errors import DataError, LineageError, ShapeError
from evergram.lineage.lineage import Lineage
from evergram.lineage.remote import local_folder
from evergram.lineage.view import View
from evergram.vector_files.open_embeddings import FLOATS, first_not_finite, not_finite

Batch = TypeVar("Batch", pa.RecordBatch, pa.Table)
ListKind = Literal["fixed", "list"]
Floats = npt.NDArray[np.floating[Any]]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ArrowFunction:
    """Reads vectors as a past version: maps an Arrow batch to an Arrow batch.

    Created by `arrow_function`. It stores only the lineage's address and two versions, so it
    pickles to a few hundred bytes; each process opens the lineage once, at its first batch. Other
    columns and the rows' order stay unchanged.

    >>> import pyarrow as pa
    >>> from evergram import Lineage
    >>> from evergram.exporting import arrow_function
    >>> view = Lineage.open("lineages/films").view(version=0)
    >>> _, vectors = Lineage.open("lineages/films").embeddings("candidate")
    >>> batch = pa.record_batch({"day": ["Mon", "Tue"], "vector": vectors[:2].tolist()})
    >>> read = arrow_function(view)(batch)
    >>> read.schema.names, len(read["vector"][0])
    (['day', 'vector'], 4)

    Args:
        address: the lineage's folder or address; all machines of the engine must be able to open
            it.
        version, source: j and k: vectors of version k are read as version j.
        fingerprints: of j and k, to refuse another lineage at the same address.
        vector_column: the column of vectors, which is replaced.
        lists: "fixed" writes fixed-size lists; "list" writes variable-size lists, for Spark.
    """

    address: str
    version: int
    source: int
    fingerprints: tuple[str, str]
    vector_column: str = "vector"
    lists: ListKind = "fixed"

    def __post_init__(self) -> None:
        if self.lists not in get_args(ListKind):
            raise DataError(f"lists is {self.lists!r}; it must be 'fixed' or 'list'.")

    def __call__(self, batch: Batch) -> Batch:
        """Return the record batch or table with its vectors read as version j; nulls stay nulls.

        Raises: DataError: there is not exactly one such column, it does not have lists of floats,
            or a number is not finite, as float32 or read as version j. ShapeError: vectors have
            another dim than version k. LineageError: the lineage cannot be opened, or has been
            replaced by another.
        """
        index = self._column_index(batch.schema)
        column = batch.column(index)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        return batch.set_column(index, self.field, self._rewritten(column))

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Apply the function to each batch; Spark's `mapInArrow` takes this method."""
        for batch in batches:
            yield self(batch)

    def reader(self, batches: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """Apply the function lazily to a stream of batches."""
        return pa.RecordBatchReader.from_batches(self.schema(batches.schema), self.batches(batches))

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the output schema for an input schema; raises the errors of `__call__`."""
        return schema.set(self._column_index(schema), self.field)

    @property
    def dim(self) -> int:
        """D_j, the length of the output vectors."""
        return _applied(self).view.dim

    @property
    def field(self) -> pa.Field:
        """The output column of vectors: lists of float32, D_j long."""
        kind = pa.list_(pa.float32(), self.dim) if self.lists == "fixed" else pa.list_(pa.float32())
        return pa.field(self.vector_column, kind)

    def _column_index(self, schema: pa.Schema) -> int:
        count = schema.names.count(self.vector_column)
        if count == 1:
            return int(schema.get_field_index(self.vector_column))
        raise DataError(
            f"A batch has {count or 'no'} column{'s' * (count > 1)} {self.vector_column!r}; its "
            f"columns are {', '.join(schema.names)}. Select one column of that name, or give "
            "arrow_function another vector_column."
        )

    def _rewritten(self, column: pa.Array) -> pa.Array:
        """Map a column of vectors from version k to version j; nulls stay nulls."""
        applied = _applied(self)
        is_valid = column.is_valid().to_numpy(zero_copy_only=False)
        vectors = _floats_of(column, is_valid, applied.source_dim, self.vector_column)
        # Copy, because Arrow's memory is read-only.
        tensor = torch.from_numpy(np.array(vectors, order="C"))
        view, what = applied.view, ""
        if (row := first_not_finite(tensor.float())) is not None:
            what = not_finite(tensor[row])
        else:
            mapped = applied.chain.apply(tensor, view.source, view.version).float()
            if (row := first_not_finite(mapped)) is not None:
                what = not_finite(tensor[row], view.version)
        if row is not None:
            number = int(np.flatnonzero(is_valid)[row]) + 1
            raise DataError(
                f"Row {number} of a batch: its vector (column {self.vector_column!r}) {what}; "
                "correct it or leave the row out."
            )
        flat = pa.array(mapped.contiguous().numpy().reshape(-1), pa.float32())
        lists = pa.FixedSizeListArray.from_arrays(flat, view.dim)
        if not is_valid.all():
            rows = np.where(is_valid, np.cumsum(is_valid) - 1, 0)
            lists = lists.take(pa.array(rows, mask=~is_valid))
        return lists if self.lists == "fixed" else lists.cast(pa.list_(pa.float32()))


def arrow_function(
    view: View, *, vector_column: str = "vector", lists: ListKind = "fixed"
) -> ArrowFunction:
    """Return a view as a function that maps Arrow batches, for engines.

    Args:
        vector_column, lists: see `ArrowFunction`.
    Raises: DataError: `lists` is neither "fixed" nor "list".
    """
    # The engine's workers may run in another folder.
    folder = local_folder(view.address)
    address = view.address if folder is None else str(folder.resolve())
    fingerprints = view.fingerprint, view.computed_from
    return ArrowFunction(address, view.version, view.source, fingerprints, vector_column, lists)


@dataclass(frozen=True)
class _Applied:
    """What a function needs from the opened lineage."""

    view: View
    chain: Chain
    source_dim: int


@lru_cache(maxsize=8)
def _applied(function: ArrowFunction) -> _Applied:
    """Open a function's lineage, once in each process."""
    lineage = Lineage.open(function.address)
    view = lineage.view(function.version, source=function.source)
    if (view.fingerprint, view.computed_from) != function.fingerprints:
        raise LineageError(
            f"The lineage at {function.address} was replaced after this function was created: "
            f"version {function.version} or {function.source} has another fingerprint. Create the "
            "function again."
        )
    return _Applied(view, lineage.chain, lineage.manifest(function.source).dim)


def _floats_of(column: pa.Array, is_valid: Mask, dim: int, name: str) -> Floats:
    """Return the vectors of a column's valid rows, [m, D_k]."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    fixed = pa.types.is_fixed_size_list(kind)
    if not (fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise DataError(f"Column {name!r} is {kind}; it must be lists of floats.")
    if kind.value_type not in FLOATS:
        raise DataError(
            f"Column {name!r} has lists of {kind.value_type}; it must have float16, float32 or "
            "float64."
        )
    lists = column if is_valid.all() else column.filter(pa.array(is_valid))
    lengths = pc.unique(pc.list_value_length(lists)).to_pylist()
    if any(length != dim for length in lengths):
        raise ShapeError(
            f"A vector in column {name!r} has {next(n for n in lengths if n != dim)} numbers, but "
            f"the vectors of its version have {dim}."
        )
    flat = lists.flatten()
    if flat.null_count:
        raise DataError(f"A vector in column {name!r} contains a null; leave its row out.")
    values = np.asarray(flat.to_numpy(zero_copy_only=False), dtype=FLOATS[kind.value_type])
    return values.reshape(-1, dim)
