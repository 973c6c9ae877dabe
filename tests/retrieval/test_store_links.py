"""Stores and backfills of a lineage read and remove nothing outside of its folder."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from tests.support.outside import SECRET, outside_folder

from evergram.errors import IntegrityError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.fill import local_stores
from evergram.stores.open_store import open_store


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return outside_folder(tmp_path)


@pytest.mark.parametrize("part", ["stores", "stores/object", "stores/object/segments"])
def test_a_store_of_the_lineage_stays_in_it(lineage: Lineage, outside: Path, part: str) -> None:
    """A store removes what it does not list."""
    for store in local_stores(lineage).values():
        store.close()
    place = lineage.path / part
    place.rename(lineage.path / "moved")
    place.symlink_to(outside)
    with pytest.raises(IntegrityError, match="by a symbolic link"):
        local_stores(lineage)
    assert [p.name for p in outside.iterdir()] == ["own"]


def test_a_store_reads_and_removes_no_file_outside(lineage: Lineage, outside: Path) -> None:
    """Its `store.json` names files, with a checksum that anybody can make."""
    (store,) = local_stores(lineage).values()
    store.close()
    path = lineage.path / "stores/object/store.json"
    record = json.loads(path.read_text())
    body = record["store"]
    body["segments"][0]["data"]["name"] = os.path.relpath(
        outside / "own", lineage.path / "stores/object/segments"
    )
    record["sha256"] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(record))
    with pytest.raises(IntegrityError, match="outside of the store's folder"):
        local_stores(lineage)
    assert (outside / "own").read_bytes() == SECRET


def test_a_backfill_stays_in_the_lineage(lineage: Lineage, outside: Path, tmp_path: Path) -> None:
    with open_store(str(tmp_path / "s"), create="int64") as store:
        work = Backfill(lineage, store, "object")
        work.plan()
        (work.folder / "journal").rmdir()
        (work.folder / "journal").symlink_to(outside)
        with pytest.raises(IntegrityError, match="by a symbolic link"):
            Backfill(lineage, store, "object")
