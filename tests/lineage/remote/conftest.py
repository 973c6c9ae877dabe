"""Fixtures of lineages that live elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.artefacts import artefact
from tests.support.buckets import PLACE, Bucket
from tests.support.publishing import publish_next

from evergram.lineage.lineage import Lineage


@pytest.fixture(autouse=True)
def _empty_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EVERGRAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BUCKET", str(tmp_path / "bucket"))
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def lineage() -> Lineage:
    """Versions 0 and 1, of dims 2 and 3."""
    shop = Lineage.create(PLACE, "shop")
    publish_next(shop, artefact(2))
    publish_next(shop, artefact(3, 2, seed=1))
    return shop
