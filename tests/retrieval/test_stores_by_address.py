"""Filling and backfilling from Python what `evergram store fill` and `store backfill` do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.lineages import lineage_of, publish

from evergram.errors import LineageError, UnknownVersionError
from evergram.retrieval.stores_by_address import fill_stores, open_backfill


def test_stores_are_filled_and_then_brought_to_the_next_version(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    address = str(tmp_path / "store")
    calls: list[tuple[str, int, int, int]] = []

    def progress(side: str, version: int, done: int, total: int) -> None:
        calls.append((side, version, done, total))

    (filled,) = fill_stores(lineage, {"object": address}, index=True, progress=progress)
    assert (filled.side, filled.rows, filled.held) == ("object", 300, {0: 300})
    assert filled.as_json() == {
        "store": filled.store,
        "side": "object",
        "rows": 300,
        "held": {0: 300},
    }
    assert calls[-1] == ("object", 0, 300, 300)
    publish(lineage, 1)
    with open_backfill(lineage, "object", address) as backfill:
        assert backfill.plan().rows == 300
        assert backfill.apply().held == {1: 300}


def test_a_store_is_filled_with_a_version_before_it_is_promoted(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    publish(lineage, 1, promote=False)
    (filled,) = fill_stores(lineage, {"object": str(tmp_path / "new")}, version="newest")
    assert (lineage.production, filled.held) == (0, {1: 300})
    (filled,) = fill_stores(lineage, {"object": str(tmp_path / "old")})
    assert filled.held == {0: 300}
    with pytest.raises(UnknownVersionError):
        fill_stores(lineage, {"object": str(tmp_path / "none")}, version=7)
    assert not (tmp_path / "none").exists()


def test_a_side_that_is_not_there_is_refused_before_a_store_is_opened(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    with pytest.raises(LineageError, match="no side 'query'"):
        fill_stores(lineage, {"query": str(tmp_path / "store")})
    with (
        pytest.raises(LineageError, match="no side 'query'"),
        open_backfill(lineage, "query", str(tmp_path / "store")),
    ):
        raise AssertionError("it was opened")
    assert not (tmp_path / "store").exists()
