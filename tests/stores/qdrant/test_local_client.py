"""Stores in one folder share its client, and the last one closes it."""

from __future__ import annotations

import gc
import warnings
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from qdrant_client.local.local_collection import LocalCollection
from qdrant_client.local.qdrant_local import QdrantLocal

from evergram.errors import StoreError
from evergram.stores.open_store import open_store
from evergram.stores.qdrant.local_client import LocalClient
from evergram.stores.rows import Rows
from evergram.stores.store import Space


def test_two_stores_share_a_folder_and_the_last_one_closes_it(tmp_path: Path) -> None:
    films, people = (open_store(f"qdrant:{tmp_path}/q#{n}", create="int64") for n in "ab")
    films.close()
    people.add_space(Space(0, 3, "sha256:zero"))
    with pytest.raises(StoreError, match="was closed"):
        films.spaces()
    people.close()
    people.close()
    with open_store(f"qdrant:{tmp_path}/q#b") as again:
        assert list(again.spaces()) == [0]


def test_a_client_that_nobody_uses_is_not_kept(tmp_path: Path) -> None:
    client = LocalClient.share(tmp_path)
    assert LocalClient.share(tmp_path) is client
    client.release()
    client.release()
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    other = LocalClient.share(tmp_path)
    other.release()


def test_advice_about_size_is_not_shown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (QdrantLocal, LocalCollection):
        monkeypatch.setattr(one, "LARGE_DATA_THRESHOLD", 1)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for _ in range(2):
            with open_store(f"qdrant:{tmp_path}/q#a", create="int64") as store:
                store.add_space(Space(0, 3, "sha256:zero"))
                store.upsert(Rows(0, pa.array([1, 2, 3]), np.eye(3, dtype=np.float32)))
                store.fetch([1, 2])
    assert not [w for w in shown if "Local mode" in str(w.message)]
