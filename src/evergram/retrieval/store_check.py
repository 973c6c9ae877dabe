"""Checks that a store holds vectors of this lineage, and of the side that it is used for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from evergram.errors import IntegrityError, LineageError
from evergram.lineage.artefact import Block
from evergram.lineage.lineage import Lineage
from evergram.retrieval.adopting.adopted_check import check_adopted
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.rows import places_among
from evergram.stores.store import Store, other_side
from evergram.vector_files.open_embeddings import open_embeddings

# Rows of a published file that are looked up in a store, if its canaries decide nothing.
LOOKED_UP = 1_000


def check_store(lineage: Lineage, store: Store, side: str, *, withdrawn: bool = False) -> None:
    """Refuse a store of another lineage or another side. Nothing is written to it.

    Args:
        withdrawn: as of `check_spaces`.
    Raises: IntegrityError: a store holds vectors of another lineage or of another side, or it does
        not say of which side, and its rows do not prove it. LineageError: as `check_spaces`.
    """
    if isinstance(store, AdoptedStore):
        check_adopted(lineage, store, side)
        return
    check_spaces(lineage, store, withdrawn=withdrawn)
    recorded = store.side
    if recorded == side:
        return
    if recorded is not None:
        raise other_side(store, side)
    versions = store.filled().keys()
    sides = {name for manifest in lineage.versions for name in manifest.embeddings}
    if not versions or sides == {side}:
        return
    proved = sides_of_rows(lineage, store)
    if proved == {side}:
        return
    why = f"its rows are of {' and of '.join(repr(name) for name in sorted(proved))}"
    todo = "Fill another store by 'evergram store fill', and use that"
    if not proved:
        why = f"none of its rows was published by {lineage}"
        todo += f", or, if you know that it is of this side, say so: store.take_side({side!r})"
    raise IntegrityError(
        f"{store.address} does not say which side it holds, as it was not filled by this Evergram, "
        f"and cannot be used for side {side!r}: {why}. {todo}."
    )


def take_side(lineage: Lineage, store: Store, side: str, *, withdrawn: bool = False) -> None:
    """Check a store, and record in it for good that it is of this side.

    Raises: as `check_store`.
    """
    check_store(lineage, store, side, withdrawn=withdrawn)
    store.take_side(side)


def sides_of_rows(lineage: Lineage, store: Store) -> set[str]:
    """Return the sides of which a store has a vector, under its id, that no other side has.

    The canaries of its versions are compared, and if they decide nothing the beginning of the
    published files.
    """
    known = {manifest.version for manifest in lineage.versions}
    versions = sorted(store.filled().keys() & known)
    for evidence in (_canaries, _published):
        sides: set[str] = set()
        for version in versions:
            sides |= _sides(store, version, evidence(lineage, version))
        if sides:
            return sides
    return set()


def _canaries(lineage: Lineage, version: int) -> dict[str, Block]:
    return lineage.canaries(version)


def _published(lineage: Lineage, version: int) -> dict[str, Block]:
    if version not in lineage.versions_with_embeddings:
        return {}
    files = {side: lineage.stored(side, version) for side in lineage.manifest(version).embeddings}
    # A file of embeddings has a row at least.
    return {side: next(open_embeddings(path).blocks(LOOKED_UP)) for side, path in files.items()}


def _sides(store: Store, version: int, blocks: Mapping[str, Block]) -> set[str]:
    """Return the sides of which a store has a row that no other side has."""
    same = {side: set(_same(store, version, *block)) for side, block in blocks.items()}
    return {
        side
        for side, mine in same.items()
        if mine - {key for name, others in same.items() if name != side for key in others}
    }


def _same(store: Store, version: int, ids: pa.Array, vectors: object) -> Iterator[int | str]:
    """Yield the ids whose vector in a store is these vectors' bit by bit."""
    expected = np.asarray(vectors, dtype=np.float32)
    try:
        ids = ids.cast(store.id_type)
    except pa.ArrowInvalid:
        return  # texts, while the store's ids are numbers
    for rows in store.fetch(ids):
        if rows.version == version and len(rows):
            _, places = places_among(rows.ids, ids)
            mine = rows.vectors[:, : expected.shape[1]]
            equal = (mine == expected[places]).all(axis=1)
            yield from rows.ids.filter(pa.array(equal)).to_pylist()


def check_spaces(lineage: Lineage, store: Store, *, withdrawn: bool = False) -> None:
    """Refuse a store that holds vectors of another lineage.

    Args:
        withdrawn: whether it may have rows of a withdrawn version, which nobody can read.
    Raises: IntegrityError: it holds vectors of another lineage. LineageError: it holds vectors of a
        withdrawn version.
    """
    known = {m.version: m for m in lineage.versions}
    for version, space in store.filled().items():
        gone = lineage.withdrawn.get(version)
        owner = gone if gone is not None else known.get(version)
        mark = "not there" if owner is None else owner.fingerprint
        if space.fingerprint != mark:
            raise IntegrityError(
                f"{store.address} holds vectors of version {version} with fingerprint "
                f"{space.fingerprint}; that of {lineage.path} is {mark}. It was "
                "filled from another lineage; use another store."
            )
        if gone is not None:
            if withdrawn:
                continue
            raise LineageError(
                f"{store.address} holds rows of version {version}, which was withdrawn: put back "
                "what they replaced by 'evergram store backfill rollback', or fill the store again "
                "by 'evergram store fill'."
            )
        manifest = known[version]
        if space.dim not in (manifest.dim, manifest.dim + version + 1):
            raise IntegrityError(
                f"{store.address} holds vectors of version {version} with {space.dim} "
                f"coordinates; the version has {manifest.dim}."
            )
