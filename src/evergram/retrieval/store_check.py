"""Checks that a store holds vectors of this lineage, and of the side that it is used for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from evergram.errors import IntegrityError, LineageError
from evergram.lineage.artefact import Block
from evergram.lineage.lineage import Lineage
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.store import ReadableStore, other_side
from evergram.vector_files.open_embeddings import open_embeddings

# A vector is the published one if it differs from it by less than this part of its length: the
# rounding of half precision and of another run of the same model are less, another model is more.
TOLERANCE = 2e-3
# The share of the compared vectors that must be the published ones: some texts may have changed.
AGREEING = 0.9
# Rows of the table that are looked for in the published file, if it has no canary.
LOOKED_FOR = 200


def _check_version(lineage: Lineage, store: AdoptedStore, side: str, version: int) -> None:
    """Compare vectors of one version with those that were published.

    Raises: IntegrityError: a column holds other vectors, of another dim, or none that could be
        compared. LineageError: the version is not in the lineage.
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
    """Yield the vectors that were published under the ids of some of the table's rows, as the whole
    published file has them."""
    if version not in lineage.versions_with_embeddings:
        return
    if side not in lineage.manifest(version).embeddings:
        return
    own = store.column_rows(version, None, LOOKED_FOR)
    for ids, vectors in open_embeddings(lineage.stored(side, version)).blocks():
        same = _as_stored(store, ids)
        if same is None:
            return
        mask = pc.is_in(same, value_set=own.ids)
        if pc.any(mask).as_py():
            kept = mask.to_numpy(zero_copy_only=False)
            yield same.filter(mask), vectors[torch.from_numpy(kept)]


def _as_stored(store: AdoptedStore, ids: pa.Array) -> pa.Array | None:
    """Return ids as the store's type; None if one cannot be one."""
    try:
        return ids.cast(store.id_type)
    except pa.ArrowInvalid:
        return None


def _compared(store: AdoptedStore, version: int, blocks: Iterable[Block]) -> tuple[int, int]:
    """Return how many of some published vectors the table has, and how many of these are equal."""
    compared = agreeing = 0
    for published, vectors in blocks:
        ids = _as_stored(store, published)
        if ids is None:
            break
        rows = store.column_rows(version, ids, len(ids))
        places = pc.index_in(rows.ids, value_set=ids).to_numpy(zero_copy_only=False)
        expected = np.asarray(vectors, dtype=np.float64)[places]
        differences = np.linalg.norm(rows.vectors - expected, axis=1)
        compared += len(rows)
        agreeing += int((differences <= TOLERANCE * np.linalg.norm(expected, axis=1)).sum())
    return compared, agreeing


def check_store(
    lineage: Lineage, store: ReadableStore, side: str, *, withdrawn: bool = False
) -> None:
    """Refuse a store of another lineage or another side. Nothing is written to it.

    Of a table of the user's own, a column that has no vector yet is compared with what was
    published before the first row of its version is read.

    Args:
        withdrawn: whether it may have rows of a withdrawn version, which nobody can read.
    Raises: IntegrityError: a store holds vectors of another lineage or of another side, or it has
        rows and does not say of which side. LineageError: it has rows of a withdrawn version.
    """
    filled = store.filled()
    if isinstance(store, AdoptedStore):
        store.set_check(partial(_check_version, lineage, store, side))
        if not filled:
            raise IntegrityError(
                f"{store.address} has no row with a vector yet, so that it cannot be proved to be "
                f"of {lineage}; write its rows first."
            )
        for version in filled:
            store.require(version)
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
        if gone is not None and not withdrawn:
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
