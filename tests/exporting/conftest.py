"""A lineage of three versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.lineages import lineage_of

from evergram.lineage.lineage import Lineage


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return lineage_of(tmp_path / "line")
