"""The model of an upgrade that was not published, as another version was published first."""

from __future__ import annotations

from pathlib import Path

from evergram.atomic_files import OWNER_ALONE, make_folder, new_folder, remove_tree
from evergram.errors import LineageError
from evergram.lineage.artefact import Artefact, write_version
from evergram.lineage.disk.manifest import read_manifest
from evergram.lineage.disk.path_check import check_tree
from evergram.lineage.version_reader import VersionReader

FOLDER = "lost"


def keep_lost(work: Path, number: int, artefact: Artefact) -> Path:
    """Keep a version, without the embeddings, which its model computes again. Returns: its folder.

    Args:
        work: `.work` of the lineage.
        number: the version number that it was trained as.
    """
    folder = work / FOLDER
    make_folder(work)
    remove_tree(folder)
    with new_folder(folder, OWNER_ALONE) as part:
        write_version(part, f"lost@v{number}", number, artefact, {}, {}, None, None)
    return folder


def read_lost(root: Path, work: Path, lineage: str) -> VersionReader:
    """Return the model that `keep_lost` kept.

    Args:
        root: the lineage's folder.
        work: `.work` in it.
        lineage: what to call it in an error.
    Raises: LineageError: there is none. IntegrityError: it is damaged.
    """
    folder = work / FOLDER
    if not folder.is_dir():
        raise LineageError(
            f"No model is kept for {lineage}: one is when its upgrade trained it and another "
            "version was published first. Train one, without --kept."
        )
    check_tree(root, folder)
    return VersionReader(folder, read_manifest(folder))
