"""The model of an upgrade that was not published because another version came first."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from evergram.atomic_files import OWNER_ALONE, make_folder, new_folder, remove_tree
from evergram.errors import LineageError
from evergram.lineage.artefact import Artefact
from evergram.lineage.disk.manifest import read_manifest
from evergram.lineage.disk.path_check import check_tree
from evergram.lineage.publishing.version_writer import PublicationFacts, write_version
from evergram.lineage.version_reader import VersionReader

FOLDER = "lost"


def keep_lost(work: Path, number: int, artefact: Artefact) -> Path:
    """Keep a version's model and settings. Its embeddings are not kept: the model computes them.

    Args:
        work: `.work` of the lineage.
        number: the version number that it was trained as.
    Returns: the folder with its files.
    """
    folder = work / FOLDER
    make_folder(work)
    remove_tree(folder)
    with new_folder(folder, OWNER_ALONE) as part:
        write_version(part, "lost", number, artefact, PublicationFacts())
    return folder


def forget_lost(work: Path) -> None:
    """Remove the model that `keep_lost` kept in `.work`, and that folder if it is then empty."""
    remove_tree(work / FOLDER)
    with suppress(OSError):
        work.rmdir()


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
            f"No model is kept for {lineage}: one is kept if an upgrade has trained it and another "
            "version was published first. Train a new one: leave out --kept."
        )
    check_tree(root, folder)
    return VersionReader(folder, read_manifest(folder))
