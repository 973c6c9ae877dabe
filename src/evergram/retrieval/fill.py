"""Stores that are filled with a published version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.store_check import check_store
from evergram.retrieval.version_maps import VersionMaps, stored_rows
from evergram.stores.adopted_store import read_only
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows, Space, Store
from evergram.vector_files.open_embeddings import open_embeddings

Progress = Callable[[int, int], None]
# Called with the side, the version, rows written and rows in all.
SideProgress = Callable[[str, int, int, int], None]


def space_of(lineage: Lineage, version: int, *, norms: bool = True) -> Space:
    """Return the space in which a store keeps a version: [z], or with `norms` [z, n_0 … n_v]."""
    manifest = lineage.manifest(version)
    width = manifest.dim + (version + 1 if norms else 0)
    return Space(version, width, manifest.fingerprint)


def fill(
    lineage: Lineage,
    store: Store,
    side: str,
    version: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Write all embeddings of a version to a store.

    Rows of other versions stay if this version has none of their id, unless their version was
    withdrawn, as nobody can read them then. The store is of this side from then on.

    Args:
        version: one whose embeddings the lineage stores; production by default.
        progress: called with rows written and rows in all.
    Returns: rows written.
    Raises: IntegrityError: the store has vectors, or a space for that version, of another lineage;
        or it is of another side.
    """
    version = lineage.production if version is None else version
    file = open_embeddings(lineage.stored(side, version))
    if not isinstance(store, Store):
        raise read_only(store.address)
    check_store(lineage, store, side, withdrawn=True)
    store.take_side(side)
    maps = VersionMaps(lineage)
    there = store.spaces().get(version)
    # An empty space may be another lineage's, too, so its fingerprint is compared.
    plain = there is not None and there.dim == lineage.manifest(version).dim
    space = space_of(lineage, version, norms=not plain)

    def blocks() -> Iterator[Rows]:
        done = 0
        for ids, vectors in file.blocks():
            # The store may have integers as texts.
            keys = ids.cast(pa.string()) if store.id_type == pa.string() else ids
            yield stored_rows(maps, space, keys, vectors.numpy())
            done += len(ids)
            if progress is not None:
                progress(done, file.rows)

    rows = store.load(space, blocks())
    remove_withdrawn(lineage, store)
    return rows


def remove_withdrawn(lineage: Lineage, store: Store) -> None:
    """Remove the rows of withdrawn versions, which no map leads from to any other."""
    for version in store.filled().keys() & lineage.withdrawn.keys():
        for ids in [rows.ids for rows in store.scan(version)]:
            store.delete(ids)


@dataclass(frozen=True)
class FilledStore:
    """A store that was filled: rows written, and rows in it by version."""

    store: str
    side: str
    rows: int
    held: dict[int, int]


def fill_stores(
    lineage: Lineage,
    addresses: Mapping[str, str],
    *,
    version: int | str | None = None,
    index: bool = False,
    progress: SideProgress | None = None,
) -> list[FilledStore]:
    """Write all embeddings of a version to stores, created where there are none.

    All stores are opened and checked before the first row is written to any.

    Args:
        addresses: side to address.
        version: a number or a label, whose embeddings the lineage stores; production by default.
        index: build each store's native index afterwards.
        progress: called with the side, the version, the rows written and the rows in all.
    Raises: LineageError: no such side. DataError: one store is given for two sides. Others as
        `fill`.
    """
    number = lineage.resolve(version)
    kinds = {side: id_type(lineage, side, number) for side in addresses}
    refuse_shared(addresses)  # before one is made
    filled = []
    with ExitStack() as opened:
        stores = {
            side: opened.enter_context(open_store(address, create=kinds[side]))
            for side, address in addresses.items()
        }
        refuse_shared({side: store.place for side, store in stores.items()})
        for side, store in stores.items():
            check_store(lineage, store, side, withdrawn=True)
        for side, store in stores.items():
            of_side = None if progress is None else partial(progress, side, number)
            rows = fill(lineage, store, side, number, progress=of_side)
            if index:
                store.build_index()
            filled.append(FilledStore(store.address, side, rows, store.count()))
    return filled


def refuse_shared(places: Mapping[str, str]) -> None:
    """Refuse one store for two sides. Raises: DataError."""
    sides: dict[str, str] = {}
    for side, place in places.items():
        first = sides.setdefault(place, side)
        if first != side:
            raise DataError(
                f"One store is given for side {first!r} and for side {side!r}; a store holds one "
                "side: give each its own."
            )


def id_type(lineage: Lineage, side: str, version: int) -> str:
    """Return the type of the published ids, "int64" or "string"."""
    first = next(iter(open_embeddings(lineage.stored(side, version)).blocks(1)), None)
    return "int64" if first is None or pa.types.is_integer(first[0].type) else "string"
