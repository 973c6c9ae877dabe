"""The reading half of a store's interface, which a view of one moment has too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, IntegrityError, ShapeError
from evergram.ids import is_text
from evergram.stores.filters import Filter
from evergram.stores.rows import (
    Checks,
    Floats,
    Hits,
    Rows,
    Space,
    check_k,
    joined_ids,
    merge_hits,
    row_checks,
)


class StoreView(ABC):
    """A store as it is read, or a view of it at one moment: see `Store.read_consistently`.

    Raises, anywhere: StoreError: it cannot be reached or read. IntegrityError: a row is not what
        was written.
    """

    # A kind of store implements these.

    @property
    @abstractmethod
    def address(self) -> str:
        """The address, without a password; `open_store` opens it."""

    @property
    @abstractmethod
    def id_type(self) -> pa.DataType:
        """The type of its ids, int64 or string."""

    @property
    @abstractmethod
    def side(self) -> str | None:
        """The side of its rows, such as "candidate"; None until `take_side` sets it."""

    @abstractmethod
    def spaces(self) -> dict[int, Space]:
        """Return its spaces by version, ascending, also those without rows."""

    @abstractmethod
    def count(self) -> dict[int, int]:
        """Return the number of rows of each version that has any."""

    @abstractmethod
    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        """Return the rows of the ids that are there, grouped by version, in any order."""

    @abstractmethod
    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        """Return for each query of [Q, D] the ids [≤k] of a space with the largest inner products,
        best first, and the products [≤k]; among `ids` alone unless they are None."""

    # All kinds inherit these.

    def filled(self) -> dict[int, Space]:
        """Return the spaces that have a row, by version. Every search asks; a kind may answer
        without counting."""
        held = self.count()
        return {version: space for version, space in self.spaces().items() if version in held}

    def where(self, conditions: Filter) -> Self:
        """Return a view of the rows whose metadata fulfil a filter; `docs/stores.md`, "Filters".

        Raises: DataError: the filter is wrong, or, in all stores that Evergram writes, there is no
            metadata.
        """
        raise DataError(
            f"{self.address} was written by Evergram and holds ids and vectors alone, so that it "
            "cannot be filtered by metadata: leave the filter out, search among 'ids', or read a "
            'table that has the metadata (docs/stores.md, "Your own table").'
        )

    def fetch(self, ids: pa.Array | Sequence[int | str]) -> list[Rows]:
        """Return the rows of the ids that are there, grouped by version, in any order."""
        asked = self.as_ids(ids)
        if len(set(asked.to_pylist())) < len(asked):
            asked = pc.unique(asked)
        checked = self._read(asked)
        for rows, checks in checked:
            self._verify(rows, checks)
        parts = [rows for rows, _ in checked]
        if len(parts) == 1:
            return parts
        keys = joined_ids([rows.ids for rows in parts], self.id_type)
        return parts if len(pc.unique(keys)) == len(keys) else _latest(parts, self.id_type)

    def search(
        self,
        queries: Mapping[int, Floats],
        k: int,
        *,
        offsets: Mapping[int, Floats] | None = None,
        ids: pa.Array | Sequence[int | str] | None = None,
        exact: bool = False,
    ) -> list[Hits]:
        """Return for each query the k rows with the largest ⟨q_v, z⟩ + c_v, v a row's version.

        Args:
            queries: for each version to search in, float32 [Q, D_v]; every Q is the same.
            k: at least 1; where there are fewer rows, fewer are returned.
            offsets: for a version, c_v [Q]; 0 where it is left out.
            ids: search among these alone.
            exact: whether to leave out an index that these queries may mislead, as a graph of
                inner products is by queries that rows are not like.
        """
        check_k(k)
        nearest = self._nearest_without_graph if exact else self._nearest
        spaces = self.spaces()
        sizes = {len(q) for q in queries.values()}
        for version, block in queries.items():
            if block.ndim != 2 or version not in spaces or block.shape[1] != spaces[version].dim:
                has = {v: s.dim for v, s in spaces.items()}
                raise ShapeError(
                    f"Queries for version {version} are {list(block.shape)}; they must be [Q, D] "
                    f"with D of that version, one of {has} here."
                )
        if len(sizes) > 1:
            raise ShapeError(
                f"Versions have {sorted(sizes)} queries; give each version the same number."
            )
        among = None if ids is None else pc.unique(self.as_ids(ids))
        hits: list[list[Hits]] = [[] for _ in range(max(sizes, default=0))]
        # Ascending: a row that moves on meanwhile is left out of a space only when it is in a later
        # one, which is searched after.
        for version, block in sorted(queries.items()):
            added = None if offsets is None else offsets.get(version)
            block = np.ascontiguousarray(block, dtype=np.float32)
            for i, (keys, scores) in enumerate(nearest(version, block, k, among)):
                shifted = scores if added is None else scores + added[i]
                hits[i].append(Hits(keys, shifted, np.full(len(keys), version, dtype=np.int64)))
        return [merge_hits(parts, k) for parts in hits]

    def _nearest_without_graph(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        """As `_nearest`; a kind whose index is a graph compares all rows instead."""
        return self._nearest(version, queries, k, ids)

    def as_ids(self, ids: pa.Array | Sequence[int | str]) -> pa.Array:
        """Return ids as this store's type. Raises: DataError: one is null, or of another type."""
        wanted = self.id_type
        if isinstance(ids, str | bytes):
            raise DataError(f"ids is the text {ids[:40]!r}; give a list, such as [{ids[:40]!r}].")
        try:
            array = ids if isinstance(ids, pa.Array) else pa.array(ids)
            if array.type == wanted and not array.null_count:
                return array
            if pa.types.is_null(array.type) and not len(array):
                array = array.cast(wanted)
            text = is_text(array.type)
            if text != pa.types.is_string(wanted):
                raise DataError(f"Ids are {array.type}; those of {self.address} are {wanted}.")
            if not text and not pa.types.is_integer(array.type):
                raise DataError(f"Ids are {array.type}; they are integers or texts.")
            converted = array.cast(wanted)
        except (pa.ArrowException, OverflowError, TypeError, UnicodeError) as error:
            raise DataError(
                f"Ids must all be {wanted}, as those of {self.address} are: {error}."
            ) from None
        if converted.null_count:
            raise DataError("An id is null; every row needs one.")
        return converted

    def _verify(self, rows: Rows, checks: Checks) -> None:
        differ = row_checks(rows) != checks
        if differ.any():
            wrong = np.flatnonzero(differ)
            raise IntegrityError(
                f"The row of id {rows.ids[wrong[0]]} in {self.address} is not what was written "
                "(its checksum differs); write it again, or restore the store."
            )


def _latest(parts: list[Rows], kind: pa.DataType) -> list[Rows]:
    """Return each id once, at the latest version that has it."""
    seen = pa.array([], kind)
    kept = []
    for rows in sorted(parts, key=lambda r: -r.version):
        fresh = pc.invert(pc.is_in(rows.ids, value_set=seen))
        mask = fresh.to_numpy(zero_copy_only=False)
        seen = pa.concat_arrays([seen, rows.ids])
        if mask.any():
            kept.append(Rows(rows.version, rows.ids.filter(fresh), rows.vectors[mask]))
    return kept
