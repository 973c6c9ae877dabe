"""Every kind of store, each as the function that makes one, or opens it again, in a folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from tests.support.dictionary_store import DictionaryStore
from tests.support.postgres_server import postgres

from evergram.stores.open_store import open_store
from evergram.stores.store import Store


def dictionary(folder: Path, id_type: str) -> Store:
    """Return the oracle; the same one for the same folder, as it keeps nothing on disk."""
    return _DICTIONARIES.setdefault((folder, id_type), DictionaryStore(id_type))


def snapshot(folder: Path, id_type: str) -> Store:
    return open_store(str(folder / "snapshot"), create=id_type)


def pgvector(folder: Path, id_type: str) -> Store:
    # The process has one database; a store in it for each folder. Any password will do there.
    name = f"t{crc32(str(folder).encode())}_{id_type}"
    address = postgres().address(name).replace("postgres:@", "postgres:secret@")
    return open_store(address, create=id_type)


def lance(folder: Path, id_type: str) -> Store:
    return open_store(f"lance:{folder}/lance#emb", create=id_type)


def qdrant(folder: Path, id_type: str) -> Store:
    without_waiting_for_the_disk()
    return open_store(f"qdrant:{folder}/qdrant#emb", create=id_type)


def sqlite(folder: Path, id_type: str) -> Store:
    pytest.importorskip("apsw", reason="the extra sqlite is not installed")
    return open_store(f"sqlite:{folder}/sqlite.db#emb", create=id_type)


@cache
def without_waiting_for_the_disk() -> None:
    """Have Qdrant's local mode not wait after each point: no test cuts the power."""
    from qdrant_client.local.persistence import CollectionPersistence

    begin = CollectionPersistence.__init__

    def quick(self: CollectionPersistence, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        self.storage.execute("pragma synchronous = off")

    CollectionPersistence.__init__ = quick  # type: ignore[method-assign]


_DICTIONARIES: dict[tuple[Path, str], DictionaryStore] = {}

# (folder, "int64" or "string") to the store; asked for the same folder again, what was written
# must be there.
STORES: dict[str, Callable[[Path, str], Store]] = {
    "dictionary": dictionary,
    "snapshot": snapshot,
    "pgvector": pgvector,
    "lance": lance,
    "qdrant": qdrant,
    "sqlite": sqlite,
}
