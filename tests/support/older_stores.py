"""Stores that were filled when an earlier version was the newest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from tests.support.agreement import Id, as_dict
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import publish, vectors_of

from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.fill import fill, space_of, stored_rows
from evergram.retrieval.version_maps import VersionMaps


def older_store(lineage: Lineage, rows: int = 300) -> DictionaryStore:
    """A store as it was when version 1 was the newest, and 20 objects that were added by hand."""
    store = DictionaryStore()
    space = space_of(lineage, 1)
    store.add_space(space)
    ids = pa.array([*range(rows), *range(1000, 1020)])
    vectors = np.concatenate([vectors_of(1).numpy()[:rows], np.ones((20, 8), np.float32)])
    store.upsert(stored_rows(lineage, VersionMaps(lineage), space, ids, vectors))
    return store


def store_of_a_withdrawn_version(lineage: Lineage) -> tuple[DictionaryStore, dict[Id, Any]]:
    """Version 3 was published, 100 rows were refreshed to it, and it was taken back."""
    store = DictionaryStore()
    fill(lineage, store, "object")
    before = as_dict(store.scan())
    publish(lineage, 3)
    Backfill(lineage, store, "object").plan(batch=50)
    Backfill(lineage, store, "object").apply(rows=100)
    lineage.label("stable", 2)
    lineage.withdraw(3, "it was bad")
    return store, before
