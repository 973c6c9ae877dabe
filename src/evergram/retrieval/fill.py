"""Fill stores with a published version, check that they hold it, and open them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from evergram.atomic_files import make_folder, remove_folder, sync, write_text
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, IntegrityError, LineageError
from evergram.lineage.artefact import Block
from evergram.lineage.lineage import Lineage
from evergram.lineage.locks import check_tree, file_mode
from evergram.retrieval.version_maps import VersionMaps, stored_rows
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.open_store import open_store
from evergram.stores.store import ReadableStore, Rows, Space, Store, other_side
from evergram.vector_files.open_embeddings import open_embeddings

log: logging.Logger = logging.getLogger(__name__)
Progress = Callable[[int, int], None]
# Largest relative distance between a table's vector and the published one: above half-precision
# rounding and another run of the same model, below another model.
TOLERANCE = 2e-3
# Minimum share of equal vectors: some texts may have changed.
AGREEING = 0.9
# Table rows to look up in the published file, if the table has no canary.
LOOKED_FOR = 200


def space_of(lineage: Lineage, version: int, *, norms: bool = True) -> Space:
    """Return a store's space for a version: [z], or with `norms` [z, n_0 … n_v]."""
    manifest = lineage.manifest(version)
    width = manifest.dim + (version + 1 if norms else 0)
    return Space(version, width, manifest.fingerprint)


def fill(
    lineage: Lineage,
    store: Store,
    side: str,
    version: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Write all embeddings of a version to a store.

    Rows of other versions stay if their ids are not in this version, unless their version was
    withdrawn. The store is bound to `side`.

    Args:
        version: a version with stored embeddings; default: production.
        progress: called with rows written and total rows.
    Returns: rows written.
    Raises: IntegrityError: the store belongs to another lineage or another side.
    """
    version = lineage.production if version is None else version
    file = open_embeddings(lineage.stored(side, version))
    check_store(lineage, store, side, to_write=True)
    store.take_side(side)
    maps = VersionMaps(lineage)
    plain, with_norms = (space_of(lineage, version, norms=norms) for norms in (False, True))
    space = store.space_to_fill(plain, with_norms)

    def blocks() -> Iterator[Rows]:
        done = 0
        for ids, vectors in file.blocks():
            # The store may store integers as text.
            keys = ids.cast(pa.string()) if store.id_type == pa.string() else ids
            yield stored_rows(maps, space, keys, vectors.numpy())
            done += len(ids)
            if progress is not None:
                progress(done, file.rows)

    rows = store.load(space, blocks())
    remove_withdrawn(lineage, store)
    return rows


def remove_withdrawn(lineage: Lineage, store: Store) -> None:
    """Remove the rows of withdrawn versions, which cannot be read as any other version."""
    for version in store.filled().keys() & lineage.withdrawn.keys():
        for ids in [rows.ids for rows in store.scan(version)]:
            store.delete(ids)


def refuse_shared(places: Mapping[str, str]) -> None:
    """Raises: DataError: two sides share a store."""
    if len(set(places.values())) < len(places):
        raise DataError(
            f"One store is given for two of the sides {', '.join(places)}; a store holds one side: "
            "give each its own."
        )


def id_type(lineage: Lineage, side: str, version: int) -> str:
    """Return the type of the published ids, "int64" or "string"."""
    first = next(iter(open_embeddings(lineage.stored(side, version)).blocks(1)), None)
    return "int64" if first is None or pa.types.is_integer(first[0].type) else "string"


def _check_version(lineage: Lineage, side: str, store: AdoptedStore, version: int) -> None:
    """Compare a table's vectors with those that were published.

    Raises: IntegrityError: the column has different vectors or dim, or none that can be compared.
        LineageError: the version is not in the lineage.
    """
    known = {manifest.version: manifest for manifest in lineage.versions}
    if version not in known:
        raise LineageError(
            f"{store.address} has vectors of version {version}, which {lineage} does not have; it "
            f"has {', '.join(map(str, known)) or 'none'}. Publish the version first, by "
            "'evergram vectors import' or 'evergram vectors align'."
        )
    dim = store.spaces()[version].dim
    if dim != known[version].dim:
        raise IntegrityError(
            f"{store.address} holds vectors of {dim} dims as version {version}; that version has "
            f"{known[version].dim}. Name the column, or the vector, of that version's model."
        )
    canaries = lineage.canaries(version).get(side)
    compared, agreeing = _compared(store, version, [] if canaries is None else [canaries])
    if not compared:
        compared, agreeing = _compared(store, version, _published(lineage, store, side, version))
    if not compared:
        raise IntegrityError(
            f"None of the rows of {store.address} with a vector of version {version} was published "
            f"as version {version} of side {side!r} by {lineage}, so that nothing proves whose "
            "vectors they are. Publish that version's vectors with the table's own ids, or name "
            "the right table and columns."
        )
    if agreeing < AGREEING * compared:
        raise IntegrityError(
            f"{compared - agreeing} of {compared} vectors of {store.address} that were compared "
            f"are not those that {lineage} published as version {version} of side {side!r} under "
            "these ids: the column is another model's, or another version's, or its texts have "
            "changed since. Name the right column, or publish the vectors that it has."
        )


def _published(lineage: Lineage, store: AdoptedStore, side: str, version: int) -> Iterator[Block]:
    """Yield published vectors of some of the table's ids, from the whole published file."""
    published = lineage.manifest(version).embeddings
    if version in lineage.versions_with_embeddings and side in published:
        own = store.column_rows(version, None, LOOKED_FOR)
        for ids, vectors in open_embeddings(lineage.stored(side, version)).blocks():
            mask = pc.is_in(ids.cast(store.id_type), value_set=own.ids)
            if pc.any(mask).as_py():
                kept = mask.to_numpy(zero_copy_only=False)
                yield ids.filter(mask), vectors[torch.from_numpy(kept)]


def _compared(store: AdoptedStore, version: int, blocks: Iterable[Block]) -> tuple[int, int]:
    """Return how many of the published vectors the table has, and how many of these are equal."""
    compared = agreeing = 0
    with suppress(pa.ArrowInvalid):  # ids that do not fit the table's type
        for published, vectors in blocks:
            ids = published.cast(store.id_type)
            rows = store.column_rows(version, ids, len(ids))
            places = pc.index_in(rows.ids, value_set=ids).to_numpy(zero_copy_only=False)
            expected = np.asarray(vectors, dtype=np.float64)[places]
            differences = np.linalg.norm(rows.vectors - expected, axis=1)
            compared += len(rows)
            agreeing += int((differences <= TOLERANCE * np.linalg.norm(expected, axis=1)).sum())
    return compared, agreeing


def check_store(
    lineage: Lineage, store: ReadableStore, side: str, *, to_write: bool = False
) -> None:
    """Refuse a store of another lineage or another side, without writing to it.

    In the user's own table, a column that is still empty is checked before the first row of its
    version is read.

    Args:
        to_write: accept rows of a withdrawn version, and a table without vectors.
    Raises: IntegrityError: the store belongs to another lineage or side, or it has rows but no
        recorded side. LineageError: it has rows of a withdrawn version.
    """
    filled = store.filled()
    if isinstance(store, AdoptedStore):
        store.set_check(partial(_check_version, lineage, side))
        if not filled and not to_write:
            raise IntegrityError(
                f"{store.address} has no row with a vector yet, so that it cannot be proved to be "
                f"of {lineage}; write its rows first."
            )
        for version in filled:
            if not (to_write and version in lineage.withdrawn):
                store.require(version)
        for version, name in ({} if to_write else store.missing_columns()).items():
            log.warning(
                "%s has no column %r yet; no row is of version %d.", store.address, name, version
            )
        return
    known = {m.version: m for m in lineage.versions}
    for version, space in filled.items():
        gone = lineage.withdrawn.get(version)
        owner = gone if gone is not None else known.get(version)
        mark = "not there" if owner is None else owner.fingerprint
        if space.fingerprint != mark:
            raise IntegrityError(
                f"{store.address} holds vectors of version {version} with fingerprint "
                f"{space.fingerprint}; that of {lineage.path} is {mark}. It was "
                "filled from another lineage; use another store."
            )
        if gone is not None and not to_write:
            raise LineageError(
                f"{store.address} holds rows of version {version}, which was withdrawn: put back "
                "what they replaced by 'evergram store backfill rollback', or fill the store again "
                "by 'evergram store fill'."
            )
        dim = space.dim if gone is not None else known[version].dim
        if space.dim not in (dim, dim + version + 1):
            raise IntegrityError(
                f"{store.address} holds vectors of version {version} with {space.dim} "
                f"coordinates; the version has {dim}."
            )
    sides = {name for manifest in lineage.versions for name in manifest.embeddings}
    recorded = store.side
    if recorded not in (None, side):
        raise other_side(store, side)
    if recorded is None and filled and sides != {side}:
        raise IntegrityError(
            f"{store.address} does not say which side it holds, and cannot be used for side "
            f"{side!r}: fill another store by 'evergram store fill', or, if you know that its rows "
            f"are of this side, say so: store.take_side({side!r})."
        )


def open_stores(
    lineage: Lineage, stores: Mapping[str, str | ReadableStore]
) -> dict[str, ReadableStore]:
    """Open the stores that are given by address; return all by side.

    Raises: LineageError: unknown side. DataError: two sides share a store.
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
        refuse_shared({side: store.absolute_address for side, store in by_side.items()})
        opened.pop_all()  # now the caller closes them
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
        beside: side to the store of production. If all its rows can be read as the newest version,
            and some are of it, the side gets no snapshot.
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
            # The user's own table may store integers as text.
            as_texts = store is not None and store.id_type == pa.string()
            as_texts = as_texts and id_type(lineage, side, lineage.newest) == "int64"
            folders[side] = parent / (f"{side}.string" if as_texts else side), as_texts
    return _snapshots(lineage, folders, lineage.newest) if folders else {}


def _has_newest(lineage: Lineage, store: ReadableStore) -> bool:
    """Return whether a store has rows of the newest version, and all rows can be read as it."""
    filled = set(store.read_consistently(lambda view: list(view.filled())))
    newest = lineage.newest
    # The reader refuses stores with another lineage's versions, which have no maps.
    if newest not in filled or not filled <= {m.version for m in lineage.versions}:
        return False
    return all(lineage.forward(version, newest) is not None for version in filled - {newest})


def _snapshots(
    lineage: Lineage, folders: Mapping[str, tuple[Path, bool]], version: int
) -> dict[str, Store]:
    """Fill snapshots with a version. `folders` has each side's folder and whether ids are text."""
    stores: dict[str, Store] = {}
    for folder, _ in folders.values():
        check_tree(lineage.path, folder.parent)
    # Refuse missing or damaged published files before making a folder.
    kinds = {side: id_type(lineage, side, version) for side in folders}
    dim = lineage.manifest(version).dim
    VersionMaps(lineage).norms(np.zeros((0, dim), dtype=np.float32), version)
    make_folder(lineage.path / "stores", file_mode(lineage.path))
    with ExitStack() as opened:
        for side, (folder, as_texts) in folders.items():
            kind = "string" if as_texts else kinds[side]
            store = opened.enter_context(open_store(str(folder), create=kind))
            stores[side] = store
            # Two versions may share a fingerprint but differ in their vectors.
            record = {"fingerprint": lineage.manifest(version).fingerprint, "version": version}
            # The marker next to the folder records what it was filled with.
            marker, filled_with = folder.with_name(f"{folder.name}.json"), None
            with suppress(OSError, ValueError):
                filled_with = json.loads(marker.read_text())
            held, rows = store.count(), open_embeddings(lineage.stored(side, version)).rows
            # `store fill` and backfills write rows of later versions without updating it.
            moved_on = any(v > version for v in held) and held.get(version, 0) < rows
            if filled_with != record or moved_on:
                log.info("Filling %s with version %d.", store.address, version)
                # Remove the marker first, so that it is not wrong if this is killed.
                if marker.exists():
                    marker.unlink()
                    sync(marker.parent)
                fill(lineage, store, side, version)
                write_text(marker, json.dumps(record), file_mode(lineage.path))
            remove_withdrawn(lineage, store)
        opened.pop_all()
    return stores
