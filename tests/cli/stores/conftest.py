"""A lineage beside which the command runs, and a store that is behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command import Command
from tests.support.lineages import lineage_of, publish

from evergram.stores.open_store import open_store

ROWS = 300


def versions_in(address: str) -> dict[int, int]:
    """Return how many rows a store has of each version."""
    with open_store(address) as store:
        return dict(store.count())


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lineage of one version in `line`, beside which the command runs."""
    monkeypatch.chdir(tmp_path)
    lineage_of(tmp_path / "line", versions=1)
    return tmp_path / "line"


@pytest.fixture
def outdated(line: Path, evergram: Command) -> Path:
    """A lineage whose store `rows` still holds the version before production."""
    from evergram.lineage.lineage import Lineage

    assert evergram("store", "fill", "line", "--store", "object=rows").code == 0
    publish(Lineage.open(line), 1)
    return line
