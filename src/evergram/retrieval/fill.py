"""Stores filled with a published version, and the stores in a lineage's own folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from evergram.atomic_files import make_folder, remove_folder, remove_tree, sync, write_text
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, EvergramError, IntegrityError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.lineage.paths import check_tree, file_mode
from evergram.retrieval.store_check import check_store, take_side
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.store import ReadableStore, Rows, Space, Store
from evergram.vector_files.open_embeddings import open_embeddings

Progress = Callable[[int, int], None]
# Called with the side, the version, rows written and rows in all.
SideProgress = Callable[[str, int, int, int], None]
log: logging.Logger = logging.getLogger(__name__)


def space_of(lineage: Lineage, version: int, *, norms: bool = True) -> Space:
    """Return the space in which a store keeps a version: [z], or with `norms` [z, n_0 … n_v]."""
    manifest = lineage.manifest(version)
    width = manifest.dim + (version + 1 if norms else 0)
    return Space(version, width, manifest.fingerprint)


def stored_rows(
    lineage: Lineage, maps: VersionMaps, space: Space, ids: pa.Array, vectors: np.ndarray
) -> Rows:
    """Return vectors [n, D] of a version as rows of its space.

    Raises: DataError: the squared length of a vector is past float32.
    """
    dim = lineage.manifest(space.version).dim
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if space.dim > dim:
        norms = maps.norms(vectors, space.version)
        long = np.flatnonzero(~np.isfinite(norms).all(axis=1) & np.isfinite(vectors).all(axis=1))
        if len(long):
            raise DataError(
                f"The vector of id {ids[long[0]].as_py()!r} of version {space.version} is too "
                "long: its squared length, there or read as a version before, is past float32; "
                "publish vectors that are scaled down."
            )
        vectors = np.concatenate([vectors, norms], axis=1)
    return Rows(space.version, ids, vectors)


def fill(
    lineage: Lineage,
    store: Store,
    side: str,
    version: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Write all embeddings of a version to a store.

    Rows of other versions stay if this version has none of their id, unless their version was
    withdrawn, as nobody can read them then. The store is of this side from then on.

    Args:
        version: one whose embeddings the lineage stores; production by default.
        progress: called with rows written and rows in all.
    Returns: rows written.
    Raises: IntegrityError: the store has vectors, or a space for that version, of another lineage;
        or it is of another side.
    """
    version = lineage.production if version is None else version
    file = open_embeddings(lineage.stored(side, version))
    take_side(lineage, store, side, withdrawn=True)
    maps = VersionMaps(lineage)
    there = store.spaces().get(version)
    # An empty space may be another lineage's, too, so its fingerprint is compared.
    plain = there is not None and there.dim == lineage.manifest(version).dim
    space = space_of(lineage, version, norms=not plain)

    def blocks() -> Iterator[Rows]:
        done = 0
        for ids, vectors in file.blocks():
            # A table of one's own may have integers as texts.
            keys = ids.cast(pa.string()) if store.id_type == pa.string() else ids
            yield stored_rows(lineage, maps, space, keys, vectors.numpy())
            done += len(ids)
            if progress is not None:
                progress(done, file.rows)

    rows = store.load(space, blocks())
    remove_withdrawn(lineage, store)
    return rows


@contextmanager
def stores_to_fill(
    lineage: Lineage, addresses: Mapping[str, str], version: int | None = None
) -> Iterator[dict[str, Store]]:
    """Yield a store for each side, made if it is not there yet, to be filled.

    All are checked before the first row is written to any. A snapshot that was made and got no row
    is removed again.

    Args:
        addresses: of the stores, by side.
        version: as for `fill`.
    Raises: LineageError: no such side. DataError: one store is given for two sides. Others as
        `fill`.
    """
    from evergram.stores.open_store import open_store, snapshot_folder

    version = lineage.production if version is None else version
    kinds = {side: id_type(lineage, side, version) for side in addresses}
    _refuse_shared(addresses)  # before one is made
    places = {side: snapshot_folder(address) for side, address in addresses.items()}
    new = {side: place for side, place in places.items() if place and not place.exists()}
    stores: dict[str, Store] = {}
    with ExitStack() as opened:
        try:
            for side, address in addresses.items():
                stores[side] = opened.enter_context(open_store(address, create=kinds[side]))
            _refuse_shared({side: store.place for side, store in stores.items()})
            for side, store in stores.items():
                check_store(lineage, store, side, withdrawn=True)
            yield stores
        except BaseException:
            for side in new.keys() & stores.keys():
                with suppress(EvergramError):  # another error is on its way
                    if not stores[side].count():
                        remove_tree(new[side])
            raise


def _refuse_shared(places: Mapping[str, str]) -> None:
    """Refuse one store for two sides. Raises: DataError."""
    sides: dict[str, str] = {}
    for side, place in places.items():
        first = sides.setdefault(place, side)
        if first != side:
            raise DataError(
                f"One store is given for side {first!r} and for side {side!r}; a store holds one "
                "side: give each its own."
            )


def remove_withdrawn(lineage: Lineage, store: Store) -> None:
    """Remove the rows of withdrawn versions, which no map leads from to any other."""
    for version in store.filled().keys() & lineage.withdrawn.keys():
        for ids in [rows.ids for rows in store.scan(version)]:
            store.delete(ids)


def local_stores(lineage: Lineage, progress: SideProgress | None = None) -> dict[str, Store]:
    """Return the lineage's own snapshots, DIR/stores/<side>, filled with production's version.

    Args:
        progress: called with the side, the version, rows written and rows in all.
    Raises: StoreError: another process is filling them.
    """
    return _snapshots(lineage, lineage.path / "stores", lineage.production, progress)


def canary_stores(
    lineage: Lineage,
    progress: SideProgress | None = None,
    beside: Mapping[str, ReadableStore] | None = None,
) -> dict[str, Store]:
    """Return snapshots of the newest version, DIR/stores/.canary/<side>; none if it is production.

    Args:
        progress: as for `local_stores`.
        beside: side to the store that is read for versions to production. A side whose store has
            rows of the newest version, and no row that cannot be read as it, gets no snapshot: that
            store is what will answer once the version is promoted.
    Raises: StoreError: another process is filling them.
    """
    folder = lineage.path / "stores" / ".canary"
    check_tree(lineage.path, folder)
    if lineage.newest == lineage.production:
        remove_folder(folder)
        return {}
    others = beside or {}
    wanted = {
        side: side in others and others[side].id_type == pa.string()
        for side in lineage.manifest(lineage.newest).embeddings
        if side not in others or not _has_newest(lineage, others[side])
    }
    return _snapshots(lineage, folder, lineage.newest, progress, wanted) if wanted else {}


def _has_newest(lineage: Lineage, store: ReadableStore) -> bool:
    """Return whether a store has rows of the newest version, and all rows can be read as it."""
    filled = set(store.read_consistently(lambda view: list(view.filled())))
    newest = lineage.newest
    # Of another lineage's versions no map is known; the reader refuses such a store.
    if newest not in filled or not filled <= {m.version for m in lineage.versions}:
        return False
    return all(lineage.forward(version, newest) is not None for version in filled - {newest})


def _snapshots(
    lineage: Lineage,
    parent: Path,
    version: int,
    progress: SideProgress | None,
    sides: Mapping[str, bool] | None = None,
) -> dict[str, Store]:
    """Return snapshots of the sides, of all by default, filled with a version."""
    from evergram.stores.open_store import open_store

    stores: dict[str, Store] = {}
    check_tree(lineage.path, parent)
    # Published files that are missing or damaged are refused before a folder is made.
    manifest = lineage.manifest(version)
    wanted = [side for side in manifest.embeddings if sides is None or side in sides]
    kinds = {side: id_type(lineage, side, version) for side in wanted}
    VersionMaps(lineage).norms(np.zeros((0, manifest.dim), dtype=np.float32), version)
    make_folder(lineage.path / "stores", file_mode(lineage.path))
    with ExitStack() as opened:
        for side in wanted:
            as_texts = kinds[side] == "int64" and (sides or {}).get(side, False)
            folder = parent / (f"{side}.string" if as_texts else side)
            kind = "string" if as_texts else kinds[side]
            try:
                store = opened.enter_context(open_store(str(folder), create=kind))
            except IntegrityError as error:
                # It was filled from the published file, but rows may have been added since.
                raise IntegrityError(
                    f"{error} Rows that were not added by hand can be made again: remove {folder}."
                ) from error
            marker = folder.with_name(f"{folder.name}.json")
            _fill_once(lineage, store, side, version, marker, progress)
            stores[side] = store
        opened.pop_all()
    return stores


def _fill_once(
    lineage: Lineage,
    store: Store,
    side: str,
    version: int,
    marker: Path,
    progress: SideProgress | None,
) -> None:
    """Fill a snapshot with a version, unless the file `marker` says that it was."""
    # Two versions may be of one space, with one fingerprint, and have other vectors in it.
    record = {"fingerprint": lineage.manifest(version).fingerprint, "version": version}
    if _loaded(marker) != record or _moved_on(lineage, store, side, version):
        log.info("Filling %s with version %d.", store.address, version)
        of_side = None if progress is None else partial(progress, side, version)
        # If this is killed, the marker of before would be of rows that are gone.
        if marker.exists():
            marker.unlink()
            sync(marker.parent)
        fill(lineage, store, side, version, of_side)
        write_text(marker, json.dumps(record), file_mode(lineage.path))
    remove_withdrawn(lineage, store)


def _moved_on(lineage: Lineage, store: Store, side: str, version: int) -> bool:
    """Return whether rows of a version were replaced by those of a later one, as `store fill` and
    a backfill do without this file's marker. Deleted rows do not show it."""
    held = store.count()
    if all(of_row <= version for of_row in held):
        return False
    return held.get(version, 0) < open_embeddings(lineage.stored(side, version)).rows


def open_stores(
    lineage: Lineage, stores: Mapping[str, str | ReadableStore]
) -> dict[str, ReadableStore]:
    """Return stores, by side: each is opened at its address, or is one already.

    Raises: LineageError: no such side. DataError: one store is given for two sides.
    """
    from evergram.stores.open_store import open_store

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
        _refuse_shared({side: store.place for side, store in by_side.items()})
        opened.pop_all()  # From here on they are the caller's.
    return by_side


def id_type(lineage: Lineage, side: str, version: int) -> str:
    """Return the type of the published ids, "int64" or "string"."""
    first = next(iter(open_embeddings(lineage.stored(side, version)).blocks(1)), None)
    kind = pa.int64() if first is None else first[0].type
    return "int64" if pa.types.is_integer(kind) else "string"


def _loaded(marker: Path) -> object:
    """Return the record of the version that a snapshot was filled with; None if not known."""
    try:
        return json.loads(marker.read_text())
    except (OSError, ValueError):
        return None
