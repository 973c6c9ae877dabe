"""A reader that requests share: it is closed after the last, and its facts are read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.lineages import lineage_of
from tests.support.running_service import read_from_dictionaries

from evergram.retrieval.reader import Reader
from evergram.serving.dashboard.data import published_facts
from evergram.serving.served_state import SharedReader


@pytest.fixture
def shared(tmp_path: Path) -> SharedReader:
    lineage_of(tmp_path / "line", versions=2)
    return SharedReader(read_from_dictionaries(tmp_path / "line"))


def test_the_last_to_leave_closes_the_stores(shared: SharedReader) -> None:
    store: Any = shared.reader.store()
    assert shared.enter()
    shared.leave()
    assert not store.closed
    shared.leave()
    assert store.closed


def test_a_closed_reader_is_not_entered(shared: SharedReader) -> None:
    shared.leave()
    assert not shared.enter()


def test_published_facts_are_read_by_the_first_who_asks(
    shared: SharedReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def counted(lineage: Any) -> Any:
        calls.append(lineage)
        return published_facts(lineage)

    monkeypatch.setattr("evergram.serving.served_state.published_facts", counted)
    facts = shared.published_facts()
    assert set(facts.metrics) == {0, 1}
    assert shared.published_facts() is facts
    assert len(calls) == 1


def test_the_rows_of_a_snapshot_are_in_memory_and_others_are_not(
    shared: SharedReader, tmp_path: Path
) -> None:
    assert not shared.in_memory
    reader = Reader.open(tmp_path / "line")
    snapshots = SharedReader(reader)
    assert snapshots.in_memory
    snapshots.leave()
