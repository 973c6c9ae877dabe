"""Which published files were compared with their hashes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.lineages import lineage_of

from evergram.errors import IntegrityError, UnknownVersionError
from evergram.lineage.lineage import Lineage


def test_a_file_is_checked_when_it_is_read(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line", versions=2)
    lineage = Lineage.open(tmp_path / "line")
    names = set(lineage.files(1))
    assert "versions/1/transform.safetensors" in names
    assert "embeddings/1/object.parquet" in names
    assert all((lineage.path / name).is_file() for name in names)
    # Only the newest version's own embeddings are stored.
    assert "embeddings/0/object.parquet" not in lineage.files(0)
    assert not any(lineage.files(1).values())
    lineage.embeddings("object")
    lineage.view(0)
    checked = {name for name, done in lineage.files(1).items() if done}
    assert checked == {"embeddings/1/object.parquet", "versions/1/transform.safetensors"}
    lineage.check()
    assert all(lineage.files(1).values())
    assert all(lineage.files(0).values())
    assert not any(Lineage.open(tmp_path / "line").files(1).values())
    with pytest.raises(UnknownVersionError):
        lineage.files(2)


def test_a_damaged_file_is_not_said_to_be_checked(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    name = "versions/1/transform.safetensors"
    (lineage.path / name).write_bytes(b"damaged")
    lineage = Lineage.open(tmp_path / "line")
    with pytest.raises(IntegrityError):
        lineage.view(0)
    assert lineage.files(1)[name] is False
