"""A view of a lineage as a function from Arrow to Arrow, which engines apply to whole tables."""

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
# Of any width.
Floats = npt.NDArray[np.floating[Any]]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ArrowFunction:
    """Reads vectors as a past version: a batch in, a batch out.

    Made by `arrow_function`. It holds a lineage's place and two version numbers, so it is a
    few hundred bytes when it is pickled; a process that applies it opens the lineage once, at its
    first batch. All other columns, and the number and order of rows, stay.

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
        address: the lineage's folder or address; where the engine has several machines, one that
            all of them can open.
        version, source: j and k: vectors of version k become those of version j.
        fingerprints: of j and k. A process that opens another lineage at that address is refused.
        vector_column: the column of the vectors of version k, which those of version j replace.
        lists: "fixed" writes fixed-size lists, "list" lists of any length, as Spark needs them.
    """

    address: str
    version: int
    source: int
    fingerprints: tuple[str, str]
    vector_column: str = "vector"
    lists: ListKind = "fixed"

    def __post_init__(self) -> None:
        if self.lists not in get_args(ListKind):
            raise DataError(f"lists={self.lists!r} is no kind of lists; there is fixed and list.")

    def __call__(self, batch: Batch) -> Batch:
        """Return a record batch or a table with the vectors of version j.

        A null gives a null.

        Raises: DataError: the column is missing or there twice, holds no lists of floats, or a
            number that is not finite, as float32 or in version j. ShapeError: vectors of another
            dim than version k's. LineageError: the lineage cannot be opened, or is another than the
            one that this was made of.
        """
        place = self._place(batch.schema)
        column = batch.column(place)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        return batch.set_column(place, self.field, self._rewritten(column))

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch as `__call__` returns it; Spark's `mapInArrow` takes this."""
        for batch in batches:
            yield self(batch)

    def reader(self, batches: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """Return a stream of the batches of a stream, each rewritten when it is read."""
        return pa.RecordBatchReader.from_batches(self.schema(batches.schema), self.batches(batches))

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of what `__call__` makes of this schema; raises as it does."""
        return schema.set(self._place(schema), self.field)

    @property
    def dim(self) -> int:
        """D_j, the length of the vectors that it writes."""
        return _applied(self).view.dim

    @property
    def field(self) -> pa.Field:
        """The column of vectors that it writes: lists of float32, D_j long."""
        kind = pa.list_(pa.float32(), self.dim) if self.lists == "fixed" else pa.list_(pa.float32())
        return pa.field(self.vector_column, kind)

    def _place(self, schema: pa.Schema) -> int:
        """Return the number of the column of vectors."""
        count = schema.names.count(self.vector_column)
        if count == 1:
            return int(schema.get_field_index(self.vector_column))
        raise DataError(
            f"A batch has {count or 'no'} column{'s' * (count > 1)} {self.vector_column!r}; its "
            f"columns are {', '.join(schema.names)}. Select one under that name, or name another "
            "to arrow_function."
        )

    def _rewritten(self, column: pa.Array) -> pa.Array:
        """Return a column of vectors of version k as one of version j; nulls stay nulls."""
        applied = _applied(self)
        there = column.is_valid().to_numpy(zero_copy_only=False)
        vectors = _floats_of(column, there, applied.source_dim, self.vector_column)
        # Copied, as Arrow's memory must not be written to.
        tensor = torch.from_numpy(np.array(vectors, order="C"))
        view, what = applied.view, ""
        if (row := first_not_finite(tensor.float())) is not None:
            what = not_finite(tensor[row])
        else:
            read = applied.chain.apply(tensor, view.source, view.version).float()
            if (row := first_not_finite(read)) is not None:
                what = not_finite(tensor[row], view.version)
        if row is not None:
            place = int(np.flatnonzero(there)[row])
            raise DataError(
                f"Row {place + 1} of a batch: its vector (column {self.vector_column!r}) {what}; "
                "correct it or leave the row out."
            )
        flat = pa.array(read.contiguous().numpy().reshape(-1), pa.float32())
        lists = pa.FixedSizeListArray.from_arrays(flat, view.dim)
        if not there.all():
            places = np.where(there, np.cumsum(there) - 1, 0)
            lists = lists.take(pa.array(places, mask=~there))
        return lists if self.lists == "fixed" else lists.cast(pa.list_(pa.float32()))


def arrow_function(
    view: View, *, vector_column: str = "vector", lists: ListKind = "fixed"
) -> ArrowFunction:
    """Return a view as a function from an Arrow batch to an Arrow batch, for engines.

    Args:
        vector_column, lists: as for `ArrowFunction`.
    Raises: DataError: `lists` is neither "fixed" nor "list".
    """
    # A worker of an engine may run in another folder.
    folder = local_folder(view.address)
    place = view.address if folder is None else str(folder.resolve())
    fingerprints = view.fingerprint, view.computed_from
    return ArrowFunction(place, view.version, view.source, fingerprints, vector_column, lists)


@dataclass(frozen=True)
class _Applied:
    """The opened lineage's part of a function."""

    view: View
    chain: Chain
    source_dim: int


@lru_cache(maxsize=8)
def _applied(function: ArrowFunction) -> _Applied:
    """Open the lineage of a function, once in each process."""
    lineage = Lineage.open(function.address)
    view = lineage.view(function.version, source=function.source)
    if (view.fingerprint, view.computed_from) != function.fingerprints:
        raise LineageError(
            f"{function.address} holds another lineage than when this function was made: its "
            f"version {function.version} or {function.source} has another fingerprint. Make the "
            "function again from the lineage that is there."
        )
    return _Applied(view, lineage.chain, lineage.manifest(function.source).dim)


def _floats_of(column: pa.Array, there: Mask, dim: int, name: str) -> Floats:
    """Return the vectors of a column's rows that are `there`, [m, D_k]."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    fixed = pa.types.is_fixed_size_list(kind)
    if not (fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise DataError(f"Column {name!r} is {kind}; lists of floats are needed.")
    if kind.value_type not in FLOATS:
        raise DataError(
            f"Column {name!r} holds {kind.value_type}; float16, float32 or float64 is needed."
        )
    lists = column if there.all() else column.filter(pa.array(there))
    lengths = pc.unique(pc.list_value_length(lists)).to_pylist()
    if any(length != dim for length in lengths):
        raise ShapeError(
            f"A vector in column {name!r} has {next(n for n in lengths if n != dim)} numbers; "
            f"those of the version that it is read from have {dim}."
        )
    flat = lists.flatten()
    if flat.null_count:
        raise DataError(f"A vector in column {name!r} has a null in it; leave its row out.")
    values = np.asarray(flat.to_numpy(zero_copy_only=False), dtype=FLOATS[kind.value_type])
    return values.reshape(-1, dim)
