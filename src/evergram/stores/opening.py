"""From an address to a store."""

from __future__ import annotations

from evergram.errors import DataError
from evergram.stores.store import ID_TYPES, Store


def open_store(address: str, *, create: str | None = None) -> Store:
    """The store at an address; one without a scheme is the folder of a snapshot.

    Args:
        create: make it where it is not there, for ids of this type, "int64" or "string".
    Raises: DataError: a store that is not there; another type of ids.
        StoreError: it cannot be reached.
    """
    if create is not None and create not in ID_TYPES:
        raise DataError(f"Ids of type {create!r} were asked for; a store has int64 or string.")
    from evergram.stores.snapshot import SnapshotStore

    return SnapshotStore.open(address.removeprefix("snapshot:"), create)
