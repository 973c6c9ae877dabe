"""What an address says of a collection of somebody's own, and what Qdrant says of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergram.errors import DataError, StoreError
from evergram.stores.adopted_address import AdoptedNames, read_names, split_address, wrong_address
from evergram.stores.qdrant.qdrant_connection import KEY, is_url

SCHEME = "qdrant-collection:"
FORM = (
    "qdrant-collection:http://HOST:6333#collection=NAME&v0=VECTOR, or with a folder of the local "
    "mode in place of the URL, with v1=VECTOR … for later versions, v0= for a vector without a "
    "name, and if need be id=FIELD and filter=FIELD,FIELD; write & in a name as %26, # as %23, a "
    f"comma as %2C and % as %25. A key is not part of it but of the environment, as {KEY}"
)
# The id that an address names where the points' own ids are meant.
POINT = "point"
# Qdrant reads other fields as paths into the payload.
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")

Ask = Callable[..., Any]


@dataclass(frozen=True)
class CollectionAddress:
    """What an address says.

    Args:
        place: URL of a server, or a folder.
        field: of the payload, with the ids; None where they are those of the points.
        vectors: version to the name of its vector, "" where it has none.
        filters: fields that filters may name.
    """

    place: str
    collection: str
    field: str | None
    vectors: dict[int, str]
    filters: tuple[str, ...]
    shown: str

    @property
    def remote(self) -> bool:
        """Whether it is on a server."""
        return is_url(self.place)

    @property
    def resolved(self) -> str:
        """The address independent of the current folder."""
        place = self.place if self.remote else str(Path(self.place).resolve())
        return f"{SCHEME}{place}#{self.shown.rpartition('#')[2]}"


def read_collection_address(address: str) -> CollectionAddress:
    """Parse an address. Raises: DataError: it is wrong; it is not repeated, as there may be a
    password in it."""
    place, rest = split_address(address.removeprefix(SCHEME), FORM)
    if "://" in place and not is_url(place):
        raise wrong_address("before the # there is a URL that is neither http nor https", FORM)
    if is_url(place) and set("@?") & set(place):
        raise wrong_address("the URL before the # has a user, a password or a key in it", FORM)
    names: AdoptedNames = read_names(rest, "collection", FORM, unnamed=True)
    field = None if names.id in (None, POINT) else names.id
    if field is not None and not _PLAIN.fullmatch(field):
        raise DataError(
            f"Ids cannot be read from the field {field!r}; name a field of the payload itself, of "
            "ASCII letters, digits, _ and -."
        )
    if "" in names.vectors.values() and len(names.vectors) > 1:
        raise DataError("A collection with a vector without a name, v0=, has no other vector.")
    return CollectionAddress(
        place=place,
        collection=names.others["collection"],
        field=field,
        vectors=names.vectors,
        filters=names.filters,
        shown=f"{SCHEME}{place}#{names.fragment}",
    )


@dataclass(frozen=True)
class VectorFacts:
    """What Qdrant says of a named vector: its dim, and "Dot", "Cosine" or "Euclid"."""

    dim: int
    distance: str


def read_vector_facts(ask: Ask, address: CollectionAddress) -> dict[int, VectorFacts]:
    """Return what Qdrant says of the vector of each version.

    Raises: DataError: there is no such collection. StoreError: a vector is not there, or is not of
        one dim with one of three distances.
    """
    try:
        params = ask("get_collection", address.collection).config.params
    except StoreError:
        there = sorted(one.name for one in ask("get_collections").collections)
        if address.collection in there:
            raise
        raise DataError(
            f"There is no collection {address.collection!r} at {address.place}; it has "
            f"{', '.join(there) or 'none'}."
        ) from None
    vectors = params.vectors or {}
    by_name = vectors if isinstance(vectors, dict) else {"": vectors}
    sparse = set(params.sparse_vectors or {})
    return {
        version: _facts(address, name, by_name, sparse) for version, name in address.vectors.items()
    }


def _facts(
    address: CollectionAddress, name: str, by_name: dict[str, Any], sparse: set[str]
) -> VectorFacts:
    if name not in by_name:
        what = f"names the vector {name!r}," if name else "names a vector without a name, v0=,"
        has = ", ".join(sorted(by_name)) or "none"
        if "" in by_name:
            has = "one without a name, which an address writes v0="
        if name in sparse:
            has += f", and {name!r} is sparse"
        raise StoreError(
            f"{address.shown} {what} which the collection does not have; it has {has}."
        )
    params = by_name[name]
    distance = getattr(params.distance, "value", params.distance)
    if params.multivector_config is not None:
        raise StoreError(
            f"The vector {name!r} of {address.shown} is several vectors a point (a multivector); "
            "name one that is one vector a point."
        )
    if distance not in ("Dot", "Cosine", "Euclid"):
        raise StoreError(
            f"The vector {name!r} of {address.shown} has the distance {distance}; it must be Dot, "
            "Cosine or Euclid."
        )
    return VectorFacts(int(params.size), distance)
