"""The lineage of three trained versions in `tests/golden`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

TRAINED = Path(__file__).parents[1] / "golden" / "lineage-1" / "trained"


@pytest.fixture
def trained_lineage(tmp_path: Path) -> Path:
    """A copy of a lineage of three trained versions; ids of both sides are numbers from 0 on."""
    shutil.copytree(TRAINED, tmp_path / "shop")
    return tmp_path / "shop"
