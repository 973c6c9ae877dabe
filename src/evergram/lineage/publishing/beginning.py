"""A lineage that begins with two versions at once: without the second, the first goes, too."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from evergram.atomic_files import remove_tree
from evergram.errors import EvergramError
from evergram.lineage.artefact import Artefact
from evergram.lineage.catalog.catalog import Catalog
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.locks.write_lock import unchanged, writing
from evergram.lineage.publishing.publication import publish_version
from evergram.lineage.remote.mirror import RECORD

LOCK, FOLDERS = ".lock", ("versions", "embeddings")
log: logging.Logger = logging.getLogger(__name__)


@contextmanager
def beginning(catalog: Catalog, first: Artefact) -> Iterator[None]:
    """Publish version 0 for a block that publishes version 1; see `Lineage.beginning`."""
    path = catalog.path
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    empty, locked = catalog.record, (path / LOCK).exists()
    publish_version(catalog, first)
    try:
        yield
    except BaseException:
        try:
            taken = _take_back(catalog)
        except EvergramError as error:
            taken = False
            log.warning("Version 0 stays in %s: %s", catalog.address, error)
        if taken:
            catalog.record = empty
            catalog.manifests.clear()
            _remove_empty(path, created, locked=locked)
        raise


def _take_back(catalog: Catalog) -> bool:
    """Remove version 0 and the record, unless there is a version 1 or a consumer by now.

    Returns: whether they were removed. Raises: LineageError: another process has changed the
        lineage meanwhile, or it cannot be written.
    """
    record, remote = catalog.record, catalog.remote
    if record.versions != [0] or ConsumerRegistry.open(catalog.address).list():
        return False
    with writing(catalog.path, remote):
        unchanged(catalog.path, record, catalog.address, labels=True)
        with nullcontext() if remote is None else remote.storage.driver_errors("written"):
            # Without the record nothing else is part of a lineage.
            if remote is not None:
                remote.storage.remove_file(RECORD)
            (catalog.path / RECORD).unlink()
        for name in FOLDERS:
            remove_tree(catalog.path / name)
            if remote is not None:
                remote.storage.keep_only(name, ())
    return True


def _remove_empty(path: Path, created: list[Path], *, locked: bool) -> None:
    """Remove the lock if it was not there before, and the folders that were created, if empty."""
    with suppress(OSError):
        if not locked:
            (path / LOCK).unlink(missing_ok=True)
        for folder in created:
            folder.rmdir()
