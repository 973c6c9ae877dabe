"""Which published files were compared with their hashes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.lineages import lineage_of

from evergram.errors import IntegrityError, UnknownVersionError
from evergram.lineage.lineage import Lineage
from evergram.lineage.read_only_lineage import ReadOnlyLineage


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


def test_a_lineage_is_read_without_any_way_to_change_it(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    reading = ReadOnlyLineage.open(lineage.path)
    assert repr(reading) == (
        f"ReadOnlyLineage('line' at {lineage.path}, versions 0, 1, production 1)"
    )
    assert torch.equal(
        reading.view(0).embeddings("object")[1], lineage.view(0).embeddings("object")[1]
    )
    assert not {"publish", "label", "withdraw", "retire", "training"} & set(dir(reading))


def test_many_versions_are_counted_in_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repr(Lineage.create(tmp_path / "new", "shop")).endswith("new, versions none)")
    lineage = lineage_of(tmp_path / "line", versions=2)
    monkeypatch.setattr(Lineage, "readable", [0, 2, 3, 4, 5, 9])
    assert "versions 0 to 9 (6 of them), production 1)" in repr(lineage)


def test_every_file_that_is_checked_is_listed(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    on_disk = {p.relative_to(lineage.path).as_posix() for p in lineage.path.rglob("*")}
    files = {name for name in on_disk if (lineage.path / name).is_file()} - {".lock"}
    assert set(lineage.checked_files) == files
