"""A lineage of two versions, and a folder outside of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.lineages import lineage_of
from tests.support.outside import outside_folder

from evergram.lineage.lineage import Lineage


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return lineage_of(tmp_path / "line", versions=2)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of somebody's own, with a file in it."""
    return outside_folder(tmp_path)
