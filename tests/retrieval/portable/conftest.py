"""A lineage of three versions, and the command."""

from pathlib import Path

import pytest
from tests.support.command import evergram
from tests.support.lineages import lineage_of

from evergram.lineage.lineage import Lineage

__all__ = ["evergram"]


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return lineage_of(tmp_path / "line")
