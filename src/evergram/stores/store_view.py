"""How every store of embeddings is read, also as it is at one moment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, IntegrityError, ShapeError
from evergram.stores.rows import Checks, Floats, Hits, Rows, Space, merge_hits, row_checks


class StoreView(ABC):
    """A store, or what it is at one moment: see `Store.read_consistently`.

    Raises, anywhere: StoreError: it cannot be reached or read. IntegrityError: a row is not what
        was written.
    """

    # What a kind of store implements.

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it is, without a password; `open_store` opens it."""

    @property
    @abstractmethod
    def id_type(self) -> pa.DataType:
        """int64 or string."""

    @property
    @abstractmethod
    def side(self) -> str | None:
        """Which side the rows are of, such as "candidate"; None where nobody has said."""

    @abstractmethod
    def spaces(self) -> dict[int, Space]:
        """By version, ascending; also of versions without rows."""

    @abstractmethod
    def count(self) -> dict[int, int]:
        """Rows of each version that has any."""

    @abstractmethod
    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        """What there is of the ids, in any order, grouped by version."""

    @abstractmethod
    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        """For each query [Q, D] the ids [≤k] of a space with the largest inner products, best
        first; among `ids` alone where they are given."""

    # What all have.

    def filled(self) -> dict[int, Space]:
        """The spaces that have a row, by version: every search asks, and not how many there are."""
        held = self.count()
        return {version: space for version, space in self.spaces().items() if version in held}

    def fetch(self, ids: pa.Array | Sequence[int | str]) -> list[Rows]:
        """The rows of the ids that are there, grouped by version, in any order."""
        asked = self.as_ids(ids)
        if len(set(asked.to_pylist())) < len(asked):
            asked = pc.unique(asked)
        found = self._read(asked)
        for rows, checks in found:
            self._verify(rows, checks)
        parts = [rows for rows, _ in found]
        if len(parts) == 1:
            return parts
        keys = _joined([rows.ids for rows in parts], self.id_type)
        return parts if len(pc.unique(keys)) == len(keys) else _latest(parts, self.id_type)

    def search(
        self,
        queries: Mapping[int, Floats],
        k: int,
        *,
        offsets: Mapping[int, Floats] | None = None,
        ids: pa.Array | Sequence[int | str] | None = None,
    ) -> list[Hits]:
        """The k rows with the largest ⟨q_v, z⟩ + c_v, v being the version of the row.

        Args:
            queries: for each version to search in, float32 [Q, D_v]; every Q is the same.
            k: at least 1; fewer are found where there are fewer rows.
            offsets: for a version, c_v [Q]; 0 where it is left out.
            ids: search among these alone.
        Returns: one a query.
        """
        if k < 1:
            raise DataError(f"k is {k}; it must be at least 1.")
        spaces = self.spaces()
        sizes = {len(q) for q in queries.values()}
        for version, given in queries.items():
            if given.ndim != 2 or version not in spaces or given.shape[1] != spaces[version].dim:
                has = {v: s.dim for v, s in spaces.items()}
                raise ShapeError(
                    f"Queries for version {version} are {list(given.shape)}; they must be [Q, D] "
                    f"with D of that version, one of {has} here."
                )
        if len(sizes) > 1:
            raise ShapeError(f"There are {sorted(sizes)} queries for different versions.")
        among = None if ids is None else pc.unique(self.as_ids(ids))
        found: list[list[Hits]] = [[] for _ in range(max(sizes, default=0))]
        for version, given in queries.items():
            added = None if offsets is None else offsets.get(version)
            given = np.ascontiguousarray(given, dtype=np.float32)
            for i, (keys, scores) in enumerate(self._nearest(version, given, k, among)):
                shifted = scores if added is None else scores + added[i]
                found[i].append(Hits(keys, shifted, np.full(len(keys), version, dtype=np.int64)))
        return [merge_hits(parts, k) for parts in found]

    def as_ids(self, ids: pa.Array | Sequence[int | str]) -> pa.Array:
        """Ids as this store's type. Raises: DataError: one cannot be, or is null."""
        wanted = self.id_type
        try:
            given = ids if isinstance(ids, pa.Array) else pa.array(ids)
            if given.type == wanted and not given.null_count:
                return given
            if pa.types.is_null(given.type) and not len(given):
                given = given.cast(wanted)
            text = pa.types.is_string(given.type) or pa.types.is_large_string(given.type)
            if text != pa.types.is_string(wanted):
                raise DataError(f"Ids are {given.type}; those of {self.address} are {wanted}.")
            found = given.cast(wanted)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise DataError(
                f"Ids must all be {wanted}, as those of {self.address} are: {error}."
            ) from None
        if found.null_count:
            raise DataError("An id is null; every row needs one.")
        return found

    def _verify(self, rows: Rows, checks: Checks) -> None:
        differ = row_checks(rows) != checks
        if differ.any():
            wrong = np.flatnonzero(differ)
            raise IntegrityError(
                f"The row of id {rows.ids[wrong[0]]} in {self.address} is not what was written "
                "(its checksum differs); write it again, or restore the store."
            )


def _joined(parts: list[pa.Array], kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays(parts) if parts else pa.array([], kind)


def _latest(parts: list[Rows], kind: pa.DataType) -> list[Rows]:
    """Each id once, at the latest version that has it."""
    seen = pa.array([], kind)
    kept = []
    for rows in sorted(parts, key=lambda r: -r.version):
        fresh = pc.invert(pc.is_in(rows.ids, value_set=seen))
        mask = fresh.to_numpy(zero_copy_only=False)
        seen = pa.concat_arrays([seen, rows.ids])
        if mask.any():
            kept.append(Rows(rows.version, rows.ids.filter(fresh), rows.vectors[mask]))
    return kept
