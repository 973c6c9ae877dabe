"""From an address to a store."""

from __future__ import annotations

import re

from evergram.errors import DataError
from evergram.stores.store import ID_TYPES, Store

# Scheme to what follows it.
SCHEMES = {
    "snapshot": "snapshot:DIR",
    "postgresql": "postgresql://USER@HOST/DATABASE#TABLE",
    "lance": "lance:DIR#TABLE",
    "qdrant": "qdrant:URL#COLLECTION, or qdrant:DIR#COLLECTION for its local mode",
}


def open_store(address: str, *, create: str | None = None) -> Store:
    """The store at an address; one without a scheme is the folder of a snapshot.

    Args:
        create: make it where it is not there, for ids of this type, "int64" or "string".
    Raises: DataError: no such scheme; a store that is not there; another type of ids.
        StoreError: it cannot be reached.
    """
    if create is not None and create not in ID_TYPES:
        raise DataError(f"Ids of type {create!r} were asked for; a store has int64 or string.")
    scheme, colon, _ = address.partition(":")
    if scheme not in SCHEMES:
        # A letter and a colon are a drive; more is a scheme, and a misspelt one is no folder.
        if colon and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+", scheme):
            raise DataError(
                f"There is no kind of store for {scheme}:…; there is a folder's path, "
                f"{'; '.join(SCHEMES.values())}."
            )
        # USER:PASSWORD@ is of no folder. Nor is it repeated, here or as the name of a new one.
        if re.search(r"//[^/]*:[^/]*@", address):
            raise DataError(
                "The address of a store has a user and a password in it, and no scheme before "
                f"'://'; there is a folder's path, {'; '.join(SCHEMES.values())}."
            )
        scheme = "snapshot"
    if scheme == "postgresql":
        from evergram.stores.postgres.pgvector_store import PgvectorStore

        return PgvectorStore.open(address, create)
    if scheme == "lance":
        from evergram.stores.lance.lance_store import LanceStore

        return LanceStore.open(address, create)
    if scheme == "qdrant":
        from evergram.stores.qdrant.qdrant_store import QdrantStore

        return QdrantStore.open(address, create)
    from evergram.stores.snapshot.snapshot_store import SnapshotStore

    return SnapshotStore.open(address.removeprefix("snapshot:"), create)
