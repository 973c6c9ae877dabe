"""Versions by number and by label, as they are on disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.support.artefacts import shop_of_three
from tests.support.lineages import lineage_of

from evergram.errors import (
    FormatError,
    IntegrityError,
    LineageError,
)
from evergram.lineage.catalog.catalog import Catalog
from evergram.lineage.lineage import Lineage


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "ü", "a\n", "x" * 129, "shop@v0"])
def test_a_lineage_without_a_proper_name_is_not_created(tmp_path: Path, name: str) -> None:
    with pytest.raises(LineageError, match="cannot be the name of a lineage"):
        Lineage.create(tmp_path / "new", name)
    assert not (tmp_path / "new").exists()


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 to 2, of dims 2, 3 and 4."""
    return shop_of_three(tmp_path / "lineage")


@pytest.mark.parametrize("name", ["lineage.json", "versions/1/manifest.json"])
def test_damaged_json_is_noticed(lineage: Lineage, name: str) -> None:
    (lineage.path / name).write_text("{")
    with pytest.raises(IntegrityError, match="damaged"):
        Lineage.open(lineage.path)


def test_a_later_format_is_refused(lineage: Lineage) -> None:
    path = lineage.path / "lineage.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 99}))
    with pytest.raises(FormatError, match="format_version 99"):
        Lineage.open(lineage.path)


def test_a_version_in_the_place_of_another_is_refused(lineage: Lineage) -> None:
    versions = lineage.path / "versions"
    shutil.rmtree(versions / "1")
    shutil.copytree(versions / "2", versions / "1")
    with pytest.raises(IntegrityError, match="another version"):
        Lineage.open(lineage.path)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LineageError, match=r"file is a file; a lineage is a folder"):
        Catalog.create(tmp_path / "file")
    assert not Catalog.exists(tmp_path / "file")


def test_vectors_of_another_version_than_they_are_said_to_be_of_are_refused(
    lineage: Lineage,
) -> None:
    catalog = Catalog.open(lineage.path)
    own, other = catalog.manifest(1).fingerprint, catalog.manifest(0).fingerprint
    catalog.check_fingerprint(None, 1, "a.parquet")
    catalog.check_fingerprint(own, 1, "a.parquet")
    message = (
        r"a\.parquet is not of version 1 of .*, but of its version 0: its fingerprint is sha256"
    )
    with pytest.raises(LineageError, match=message):
        catalog.check_fingerprint(other, 1, "a.parquet")
    with pytest.raises(LineageError, match="but of no version of it"):
        catalog.check_fingerprint("sha256:x", 1, "a.parquet")


def test_a_recipe_is_only_of_a_version_that_was_trained(lineage: Lineage, tmp_path: Path) -> None:
    assert Catalog.open(lineage.path).recipe(1) == {"name": "x"}
    files = Catalog.open(lineage_of(tmp_path / "files", versions=1).path)
    with pytest.raises(
        LineageError, match=r"Version 0 of .* came from a file of embeddings and has"
    ):
        files.recipe(0)


def test_embeddings_are_of_the_newest_and_of_folders_that_are_there(lineage: Lineage) -> None:
    catalog = Catalog.open(lineage.path)
    assert catalog.versions_with_embeddings == [2]
    catalog.embeddings_folder(0).mkdir()
    assert catalog.versions_with_embeddings == [0, 2]


def test_files_are_listed_by_their_paths_in_the_lineage(lineage: Lineage) -> None:
    catalog = Catalog.open(lineage.path)
    assert catalog.opened_files == [
        "lineage.json",
        *(f"versions/{n}/manifest.json" for n in range(3)),
    ]
    name = "versions/1/metrics.json"
    assert catalog.files(1)[name] is False
    catalog.check_files(
        catalog.folder(1), {"metrics.json": catalog.manifest(1).files["metrics.json"]}
    )
    assert catalog.files(1)[name] is True
