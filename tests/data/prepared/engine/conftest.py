"""A database in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evergram.data.prepared.engine.database import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    folder = tmp_path / "engine"
    folder.mkdir()
    with Database(folder, 256 << 20, 1) as opened:
        yield opened
