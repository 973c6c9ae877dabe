"""One process at a time writes to a lineage."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock
from tests.support.artefacts import artefact, shop_of_three

from evergram.errors import (
    LineageError,
)
from evergram.lineage.lineage import Lineage


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 to 2, of dims 2, 3 and 4."""
    return shop_of_three(tmp_path / "lineage")


def test_two_publications_at_once_do_not_mix(lineage: Lineage) -> None:
    with (
        FileLock(lineage.path / ".lock"),
        pytest.raises(LineageError, match="Another process"),
    ):
        Lineage.open(lineage.path).publish(artefact(5, 4))
