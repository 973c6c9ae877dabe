"""A service over three versions, of dims 6, 8 and 10, whose store holds the newest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serving.running import Running, running


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "line") as found:
        yield found
