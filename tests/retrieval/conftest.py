"""A lineage of three versions, and backfills that write no snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command import evergram
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import lineage_of

from evergram.lineage.lineage import Lineage
from evergram.retrieval import backfill
from evergram.stores.open_store import open_store
from evergram.stores.store import ReadableStore

__all__ = ["evergram"]


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return lineage_of(tmp_path / "line")


@pytest.fixture
def backfill_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backfill keeps its copy of the published file in a dictionary, not in a snapshot."""
    made: dict[str, DictionaryStore] = {}

    def opened(address: str, *, create: str | None = None) -> ReadableStore:
        if Path(address).name != backfill.SOURCE:
            return open_store(address, create=create)
        return made.setdefault(address, DictionaryStore())

    monkeypatch.setattr(backfill, "open_store", opened)
