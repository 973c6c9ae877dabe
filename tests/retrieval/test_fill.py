"""A store filled with a published version: again, over withdrawn rows, and of another lineage."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import publish
from tests.support.older_stores import store_of_a_withdrawn_version

from evergram.errors import DataError, IntegrityError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import fill, space_of, stored_rows
from evergram.retrieval.reader import Reader
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.store import Rows, Space

pytestmark = pytest.mark.usefixtures("backfill_in_memory")


def test_filling_twice_changes_nothing(lineage: Lineage) -> None:
    store = DictionaryStore()
    assert fill(lineage, store, "object") == 300
    before = store.count()
    fill(lineage, store, "object")
    assert store.count() == before == {2: 300}
    assert store.spaces()[2].dim == 10 + 3


def test_filling_replaces_or_removes_rows_of_a_withdrawn_version(lineage: Lineage) -> None:
    lineage.label("kept", 2)
    store, _ = store_of_a_withdrawn_version(lineage)
    space = store.spaces()[3]
    store.upsert(Rows(3, pa.array([5000]), np.ones((1, space.dim), np.float32)))
    assert fill(lineage, store, "object") == 300
    assert store.count() == {2: 300}
    Reader(lineage, {"object": store})


def test_the_lineages_own_snapshots_outlive_a_withdrawal(lineage: Lineage) -> None:
    """Version 3 has objects that version 2 has not."""
    lineage.label("kept", 2)
    publish(lineage, 3, rows=350)
    Reader.open(lineage).close()
    lineage.label("stable", 2)
    Reader.open(lineage).close()
    lineage.withdraw(3, "it was bad")
    reader = Reader.open(lineage)
    embedded = reader.embed([0, 349], 2)
    assert embedded.sources.tolist() == [2, -1]
    reader.close()


def test_a_space_of_another_lineage_is_not_filled(lineage: Lineage) -> None:
    """Its process was killed before it wrote a row."""
    store = DictionaryStore()
    mine = space_of(lineage, 2)
    store.add_space(Space(2, mine.dim, "sha256:another"))
    with pytest.raises(IntegrityError, match="belongs to another lineage"):
        fill(lineage, store, "object")
    assert store.count() == {}
    store = DictionaryStore()
    store.add_space(space_of(lineage, 2, norms=False))
    assert fill(lineage, store, "object") == 300


def test_a_vector_that_is_too_long_for_its_norm_is_named(lineage: Lineage) -> None:
    space = space_of(lineage, 1)
    vectors = np.ones((2, 8), np.float32)
    vectors[1] = 1e30
    with pytest.raises(DataError, match=r"id 8 of version 1 is too long.*scaled down"):
        stored_rows(lineage, VersionMaps(lineage), space, pa.array([7, 8]), vectors)
