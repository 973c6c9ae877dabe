"""A store in an SQLite file, where the extra is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evergram.stores.sqlite.sqlite_store import SqliteStore
from evergram.stores.store import Space


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    for module in ("apsw", "sqlite_vec"):
        pytest.importorskip(module, reason="the extra sqlite is not installed")
    with SqliteStore.open(f"sqlite:{tmp_path}/films.db#emb", "int64") as opened:
        opened.add_space(Space(0, 4, "sha256:zero"))
        yield opened
