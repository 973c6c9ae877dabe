"""The stores of a lineage's sides, opened or filled."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from evergram.atomic_files import make_folder, remove_folder, sync, write_text
from evergram.did_you_mean import did_you_mean
from evergram.errors import IntegrityError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.lineage.locks import check_tree, file_mode
from evergram.retrieval.fill import fill, id_type, refuse_shared, remove_withdrawn
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.open_store import open_store
from evergram.stores.store import ReadableStore, Store
from evergram.vector_files.open_embeddings import open_embeddings

log: logging.Logger = logging.getLogger(__name__)


def open_stores(
    lineage: Lineage, stores: Mapping[str, str | ReadableStore]
) -> dict[str, ReadableStore]:
    """Return stores, by side: each is opened at its address, or is one already.

    Raises: LineageError: no such side. DataError: one store is given for two sides.
    """
    sides = lineage.manifest(lineage.production).embeddings
    unknown = [side for side in stores if side not in sides]
    if unknown:
        raise LineageError(
            f"There is no side {unknown[0]!r} in {lineage.path}; it has {' and '.join(sides)}"
            f"{did_you_mean(unknown[0], sides)}."
        )
    with ExitStack() as opened:
        by_side = {
            side: store
            if isinstance(store, ReadableStore)
            else opened.enter_context(open_store(str(store)))
            for side, store in stores.items()
        }
        refuse_shared({side: store.place for side, store in by_side.items()})
        opened.pop_all()  # From here on they are the caller's.
    return by_side


def local_stores(lineage: Lineage) -> dict[str, Store]:
    """Return the lineage's own snapshots, DIR/stores/<side>, filled with production's version.
    Raises: StoreError: another process is filling them."""
    sides = lineage.manifest(lineage.production).embeddings
    folders = {side: (lineage.path / "stores" / side, False) for side in sides}
    return _snapshots(lineage, folders, lineage.production)


def canary_stores(
    lineage: Lineage, beside: Mapping[str, ReadableStore] | None = None
) -> dict[str, Store]:
    """Return snapshots of the newest version, DIR/stores/.canary/<side>; none if it is production.

    Args:
        beside: side to the store that is read for versions to production. A side whose store has
            rows of the newest version, and no row that cannot be read as it, gets no snapshot: that
            store is what will answer once the version is promoted.
    Raises: StoreError: another process is filling them.
    """
    parent = lineage.path / "stores" / ".canary"
    check_tree(lineage.path, parent)
    if lineage.newest == lineage.production:
        remove_folder(parent)
        return {}
    folders = {}
    for side in lineage.manifest(lineage.newest).embeddings:
        store = (beside or {}).get(side)
        if store is None or not _has_newest(lineage, store):
            # The user's own table may have integers as texts.
            as_texts = store is not None and store.id_type == pa.string()
            as_texts = as_texts and id_type(lineage, side, lineage.newest) == "int64"
            folders[side] = parent / (f"{side}.string" if as_texts else side), as_texts
    return _snapshots(lineage, folders, lineage.newest) if folders else {}


def _has_newest(lineage: Lineage, store: ReadableStore) -> bool:
    """Return whether a store has rows of the newest version, and all rows can be read as it."""
    filled = set(store.read_consistently(lambda view: list(view.filled())))
    newest = lineage.newest
    # Of another lineage's versions no map is known; the reader refuses such a store.
    if newest not in filled or not filled <= {m.version for m in lineage.versions}:
        return False
    return all(lineage.forward(version, newest) is not None for version in filled - {newest})


def _snapshots(
    lineage: Lineage, folders: Mapping[str, tuple[Path, bool]], version: int
) -> dict[str, Store]:
    """Return snapshots filled with a version, given for each side its folder, and whether ids are
    texts there whatever they are in the lineage."""
    stores: dict[str, Store] = {}
    for folder, _ in folders.values():
        check_tree(lineage.path, folder.parent)
    # Published files that are missing or damaged are refused before a folder is made.
    kinds = {side: id_type(lineage, side, version) for side in folders}
    dim = lineage.manifest(version).dim
    VersionMaps(lineage).norms(np.zeros((0, dim), dtype=np.float32), version)
    make_folder(lineage.path / "stores", file_mode(lineage.path))
    with ExitStack() as opened:
        for side, (folder, as_texts) in folders.items():
            kind = "string" if as_texts else kinds[side]
            try:
                store = opened.enter_context(open_store(str(folder), create=kind))
            except IntegrityError as error:
                # It was filled from the published file, but rows may have been added since.
                raise IntegrityError(
                    f"{error} Rows that were not added by hand can be made again: remove {folder}."
                ) from error
            _fill_once(lineage, store, side, version, folder)
            stores[side] = store
        opened.pop_all()
    return stores


def _fill_once(lineage: Lineage, store: Store, side: str, version: int, folder: Path) -> None:
    """Fill a snapshot with a version, unless a file beside its folder says that it was."""
    # Two versions may be of one space, with one fingerprint, and have other vectors in it.
    record = {"fingerprint": lineage.manifest(version).fingerprint, "version": version}
    marker, filled_with = folder.with_name(f"{folder.name}.json"), None
    with suppress(OSError, ValueError):
        filled_with = json.loads(marker.read_text())
    held = store.count()
    # Rows of a later version: `store fill` and a backfill write them without this file.
    moved_on = any(of_row > version for of_row in held) and (
        held.get(version, 0) < open_embeddings(lineage.stored(side, version)).rows
    )
    if filled_with != record or moved_on:
        log.info("Filling %s with version %d.", store.address, version)
        # If this is killed, the marker of before would be of rows that are gone.
        if marker.exists():
            marker.unlink()
            sync(marker.parent)
        fill(lineage, store, side, version)
        write_text(marker, json.dumps(record), file_mode(lineage.path))
    remove_withdrawn(lineage, store)
