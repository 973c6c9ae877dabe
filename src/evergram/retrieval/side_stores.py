"""The stores of a lineage's sides, and which of them a version is read from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, LineageError, StoreError
from evergram.lineage.lineage import Lineage, side_of
from evergram.reopening import reopened
from evergram.retrieval.fill import SideProgress, canary_stores, local_stores, open_stores
from evergram.retrieval.store_check import check_store
from evergram.stores.store import Floats, ReadableStore

BySide: TypeAlias = dict[str, ReadableStore]


class SideStores:
    """The stores that a `Reader` reads, checked. Several threads may share one.

    Args:
        stores, canaries, settled: as for `Reader`.
    Raises: LineageError: there is no store. IntegrityError: a store holds vectors of another
        lineage, or of another side.
    """

    def __init__(
        self,
        lineage: Lineage,
        stores: Mapping[str, ReadableStore],
        canaries: Mapping[str, ReadableStore] | None = None,
        settled: int | None = None,
    ) -> None:
        if not stores:
            raise LineageError(f"{lineage.path} was opened without a store to read from.")
        self._lineage = lineage
        self._stores: BySide = dict(stores)
        self._canaries: BySide = dict(canaries or {})
        self._settled = lineage.production if settled is None else settled
        for side, store in (*self._stores.items(), *self._canaries.items()):
            check_store(lineage, store, side)

    def __str__(self) -> str:
        return ", ".join(f"{side} in {store.address}" for side, store in self._stores.items())

    @property
    def by_side(self) -> BySide:
        """The store of each side."""
        return dict(self._stores)

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides that have a store."""
        return tuple(self._stores)

    @property
    def default_side(self) -> str:
        """The side that is read if none is named: "candidate", if there is one."""
        return side_of(self._stores, "the stores")

    def of(self, side: str | None = None) -> ReadableStore:
        """Return the store of a side. Raises: LineageError: there is no such side."""
        return self._stores[side_of(self._stores, "the stores", side)]

    def at(self, side: str | None, version: int) -> ReadableStore:
        """Return the store from which a version is read. Raises: as `of`."""
        store = self.of(side)
        if version <= self._settled:
            return store
        return self._canaries.get(self.default_side if side is None else side, store)

    def oldest_row(self, version: int, side: str | None) -> int | None:
        """Return the oldest version that the stored rows are of, see `Reader.oldest_row`."""
        filled = set(self.of(side).read_consistently(lambda view: list(view.filled())))
        if not filled:
            return None
        return version if filled == {version} else min(filled - {version})

    def own_rows(self, ids: pa.Array, version: int, side: str | None) -> tuple[pa.Array, Floats]:
        """Return those of the ids whose stored row is of a version, and their vectors [n, D]."""
        dim = self._lineage.manifest(version).dim
        own, vectors = ids.slice(0, 0), np.zeros((0, dim), dtype=np.float32)
        for store in dict.fromkeys([self.at(side, version), self.of(side)]):
            left = ids.filter(pc.invert(pc.is_in(ids, value_set=own)))
            for rows in store.fetch(left) if len(left) else ():
                if rows.version == version:
                    own = pa.concat_arrays([own, rows.ids])
                    vectors = np.concatenate([vectors, rows.vectors[:, :dim]])
        return own, vectors

    @contextmanager
    def opened_again(self, lineage: Lineage) -> Iterator[tuple[BySide, BySide, int]]:
        """Yield stores, canaries and the settled version for the lineage as it is now.

        If the `with` block fails, the stores are closed again. See `Reader.carried`.
        """
        with ExitStack() as failed:
            canaries: BySide = {}
            if lineage.newest != lineage.production:
                canaries.update(canary_stores(lineage))
                for store in canaries.values():
                    failed.callback(store.close)
            else:
                known = {m.version for m in lineage.versions}
                for side, store in self._canaries.items():
                    # Another process may have removed them, once the stores were refreshed.
                    with suppress(DataError, StoreError):
                        if store.spaces().keys() <= known:
                            canaries[side] = failed.enter_context(reopened(store))
            stores = {
                side: failed.enter_context(reopened(store)) for side, store in self._stores.items()
            }
            yield stores, canaries, min(self._settled, lineage.production)
            failed.pop_all()

    def close(self) -> None:
        """Close all stores."""
        for store in (*self._stores.values(), *self._canaries.values()):
            store.close()


@contextmanager
def opened_stores(
    lineage: Lineage,
    stores: Mapping[str, str | ReadableStore] | None,
    progress: SideProgress | None,
) -> Iterator[tuple[BySide, BySide]]:
    """Yield the stores and the canaries of a lineage for a `with` block.

    If the block fails, the stores that were opened here are closed again.

    Args:
        stores, progress: as for `Reader.open`.
    Raises: LineageError, DataError, StoreError.
    """
    opened: BySide = {}
    opened.update(
        local_stores(lineage, progress) if stores is None else open_stores(lineage, stores)
    )
    with ExitStack() as failed:
        for side, store in opened.items():
            if stores is None or store is not stores[side]:
                failed.callback(store.close)
        canaries: BySide = {}
        canaries.update(canary_stores(lineage, progress, None if stores is None else opened))
        for store in canaries.values():
            failed.callback(store.close)
        yield opened, canaries
        failed.pop_all()
