"""Lineages and stores that earlier versions of Evergram wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def trained_lineage(tmp_path: Path) -> Path:
    """A copy of a lineage of three trained versions; ids of both sides are numbers from 0 on."""
    shutil.copytree(GOLDEN / "format-3" / "trained", tmp_path / "shop")
    return tmp_path / "shop"
