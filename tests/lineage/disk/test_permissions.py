"""A new lineage is its owner's alone; whoever shares one says so once."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.support.lineages import publish
from tests.support.probe_files import add_probe

from evergram.lineage.disk.permissions import file_mode
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import local_stores


def modes(folder: Path) -> dict[str, int]:
    """Permissions by path, of all that is in a lineage but stores' own files."""
    permissions = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if not name.startswith(("stores/", "backfills/")):
            permissions[name] = stat.S_IMODE(path.stat().st_mode)
    return permissions


@pytest.fixture
def usual_umask() -> Any:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
def test_a_new_lineage_is_its_owners_alone(lineage: Lineage, tmp_path: Path) -> None:
    add_probe(lineage, tmp_path)
    for store in local_stores(lineage).values():
        store.close()
    lineage.label("kept", 0)
    for name, mode in modes(lineage.path).items():
        is_folder = (lineage.path / name).is_dir()
        assert mode == (0o700 if is_folder else 0o600), name
    assert {"lineage.json", "consumers.json", "stores", "probes"} <= modes(lineage.path).keys()


@pytest.mark.usefixtures("usual_umask")
def test_a_lineage_that_is_shared_once_stays_shared(lineage: Lineage, tmp_path: Path) -> None:
    """`chmod -R g+rX DIR`: what comes later has the permissions of `lineage.json`."""
    for path in [lineage.path, *lineage.path.rglob("*")]:
        path.chmod(path.stat().st_mode | (0o2050 if path.is_dir() else 0o040))
    publish(lineage, 2)
    lineage.label("kept", 1)
    add_probe(lineage, tmp_path)
    for name, mode in modes(lineage.path).items():
        is_folder = (lineage.path / name).is_dir()
        assert mode & 0o777 == (0o750 if is_folder else 0o640), name
        if is_folder:
            # Who comes later is in the same group.
            assert mode & 0o2000, name


@pytest.mark.usefixtures("usual_umask")
def test_a_lineage_that_everybody_reads_keeps_hashes_of_tokens_private(
    lineage: Lineage, tmp_path: Path
) -> None:
    """Such as one that was made before: its versions stay readable, consumers' files do not."""
    for path in [lineage.path, *lineage.path.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    publish(lineage, 2)
    probe = add_probe(lineage, tmp_path)
    permissions = modes(lineage.path)
    assert permissions["versions/2/manifest.json"] == permissions["lineage.json"] == 0o644
    assert permissions["embeddings/2"] == 0o755
    assert permissions["consumers.json"] == permissions[probe.model] == 0o640
    assert permissions["probes"] == 0o750


def test_new_files_have_the_permissions_of_the_record(tmp_path: Path) -> None:
    assert file_mode(tmp_path) == 0o600
    (tmp_path / "lineage.json").write_text("{}")
    (tmp_path / "lineage.json").chmod(0o755)
    # A file is not run.
    assert file_mode(tmp_path) == 0o644
