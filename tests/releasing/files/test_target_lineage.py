"""The lineage that a file is published in: opened where there is one, else created."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.lineages import publish

from evergram.errors import LineageError
from evergram.releasing.files.target_lineage import open_or_create


def test_a_lineage_is_created_once_and_then_opened(tmp_path: Path) -> None:
    assert open_or_create(tmp_path / "plain").name == "embeddings"
    named = open_or_create(tmp_path / "named", "films")
    publish(named, 0)
    assert open_or_create(tmp_path / "named").name == "films"
    with pytest.raises(LineageError, match="--name is of a new lineage"):
        open_or_create(tmp_path / "named", "films")
