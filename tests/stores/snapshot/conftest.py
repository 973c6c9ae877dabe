"""A snapshot with one space."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.snapshot_rows import SPACE

from evergram.stores.snapshot.snapshot_store import SnapshotStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SnapshotStore]:
    with SnapshotStore.open(str(tmp_path / "store"), "int64") as made:
        made.add_space(SPACE)
        yield made
