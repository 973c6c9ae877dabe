"""Checks that a store holds vectors of this lineage, and of the side that it is used for."""

from __future__ import annotations

from evergram.errors import IntegrityError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.adopting.adopted_check import check_adopted
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.store import Store, other_side


def check_store(lineage: Lineage, store: Store, side: str, *, withdrawn: bool = False) -> None:
    """Refuse a store of another lineage or another side. Nothing is written to it.

    Args:
        withdrawn: as of `check_spaces`.
    Raises: IntegrityError: a store holds vectors of another lineage or of another side, or it has
        rows and does not say of which side. LineageError: as `check_spaces`.
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
    raise IntegrityError(
        f"{store.address} does not say which side it holds, and cannot be used for side {side!r}: "
        "fill another store by 'evergram store fill', or, if you know that its rows are of this "
        f"side, say so: store.take_side({side!r})."
    )


def take_side(lineage: Lineage, store: Store, side: str, *, withdrawn: bool = False) -> None:
    """Check a store, and record in it for good that it is of this side.

    Raises: as `check_store`.
    """
    check_store(lineage, store, side, withdrawn=withdrawn)
    store.take_side(side)


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
