"""Fill and backfill stores that are named by their addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.fill import SideProgress, fill, stores_to_fill
from evergram.stores.open_store import open_store
from evergram.stores.store import ReadableStore


@dataclass(frozen=True)
class FilledStore:
    """A store that was filled.

    Args:
        store: its address.
        side: the side whose embeddings it holds.
        rows: rows written.
        held: rows in the store by version.
    """

    store: str
    side: str
    rows: int
    held: dict[int, int]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def fill_stores(
    lineage: Lineage,
    addresses: Mapping[str, str],
    *,
    version: int | str | None = None,
    index: bool = False,
    progress: SideProgress | None = None,
) -> list[FilledStore]:
    """Write all embeddings of a version to stores, created where there are none.

    All stores are opened and checked before the first row is written.

    Args:
        addresses: side to address.
        version: a number or a label, whose embeddings the lineage stores; production by default.
        index: build each store's native index afterwards.
        progress: called with the side, the version, the rows written and the rows in all.
    Raises: as `fill` and `stores_to_fill`.
    """
    number = lineage.resolve(version)
    filled = []
    with stores_to_fill(lineage, addresses, number) as stores:
        for side, store in stores.items():
            of_side = None if progress is None else partial(progress, side, number)
            rows = fill(lineage, store, side, number, progress=of_side)
            if index:
                store.build_index()
            filled.append(FilledStore(store.address, side, rows, store.count()))
    return filled


@contextmanager
def open_side(lineage: Lineage, side: str, address: str) -> Iterator[ReadableStore]:
    """Open the store of a side for a `with` block.

    Raises: LineageError: the lineage has no such side. StoreError: the store cannot be opened.
    """
    # The side is checked before a store is opened, which may be a database far away.
    lineage.stored(side, lineage.production)
    with open_store(address) as store:
        yield store


@contextmanager
def open_backfill(lineage: Lineage, side: str, address: str) -> Iterator[Backfill]:
    """Open a store for a `with` block, as a backfill to production's version.

    Raises: as `open_side`.
    """
    with open_side(lineage, side, address) as store:
        yield Backfill(lineage, store, side)
