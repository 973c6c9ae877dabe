"""The table of store kinds, and the function that opens a store by its address."""

from __future__ import annotations

import re
from importlib import import_module
from typing import overload

from evergram.errors import DataError
from evergram.stores.store import ID_TYPES, ReadableStore, Store

# By address scheme: the module and class of each kind. Modules are imported only when a store is
# opened, so their clients need not be installed. To add a kind, see docs/extend/store.md.
KINDS = {
    "snapshot": ("snapshot_store", "SnapshotStore"),
    "postgresql": ("pgvector_store", "PgvectorStore"),
    "pgvector-table": ("pgvector_store", "AdoptedTable"),
    "lance": ("lance_store", "LanceStore"),
    "lance-table": ("lance_store", "AdoptedLanceTable"),
    "qdrant": ("qdrant_store", "QdrantStore"),
    "qdrant-collection": ("qdrant_store", "AdoptedCollection"),
    "sqlite": ("sqlite_store", "SqliteStore"),
}


@overload
def open_store(address: str, *, create: str) -> Store: ...
@overload
def open_store(address: str, *, create: str | None = None) -> ReadableStore: ...
def open_store(address: str, *, create: str | None = None) -> ReadableStore:
    """Open the store at an address; an address without a scheme is the folder of a snapshot.

    Args:
        create: make it where it is not there, for ids of this type, "int64" or "string"; of a table
            of your own, only columns of vectors are made, when they are filled.
    Returns: a `Store`; for a table of your own, a `ReadableStore`.
    Raises: DataError: no such scheme; a store that is not there; another type of ids.
        StoreError: it cannot be reached.
    """
    if create is not None and create not in ID_TYPES:
        raise DataError(f"Ids cannot be of type {create!r}; a store holds int64 or string.")
    scheme, colon, _ = address.partition(":")
    if scheme not in KINDS:
        # One letter and a colon are a Windows drive; anything longer is an unknown scheme. Do not
        # use an address with a password as a folder name, and do not print it.
        if colon and (re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+", scheme) or "@" in address):
            raise DataError(
                f"No kind of store has the scheme {scheme!r}; give a folder's path, or an address "
                f"of {', '.join(KINDS)} (docs/stores.md)."
            )
        scheme = "snapshot"
    module, name = KINDS[scheme]
    kind = getattr(import_module(f"evergram.stores.{module}"), name)
    store: ReadableStore = kind.open(address, create)
    if create is not None and not store.adopted and store.id_type != ID_TYPES[create]:
        store.close()
        raise DataError(
            f"{store.address} has ids of type {store.id_type}, not {create}; use another store."
        )
    return store
