"""Services of a small lineage: one of each file that tests only read, and one of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command import evergram
from tests.support.running_service import Running, running

__all__ = ["evergram"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service over three versions, of dims 6, 8 and 10; a test that uses it changes nothing."""
    with running(tmp_path_factory.mktemp("served") / "line") as service:
        yield service


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Running]:
    """The same service for one test alone, which may publish, count and break things."""
    with running(tmp_path / "line") as service:
        yield service
