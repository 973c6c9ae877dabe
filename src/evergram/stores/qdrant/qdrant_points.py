"""The record of a store in Qdrant, and the ids of its points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID, uuid5

from evergram.stores.store import Space

T = TypeVar("T")

# Every point's id is made with it, so it never changes.
NAMESPACE = UUID("6f0d3a52-6f4e-5c0b-9a3c-0e2f9b1c7d84")


@dataclass(frozen=True)
class QdrantRecord:
    """The record of a store, its small collection.

    Args:
        side: of the rows; None until it is set.
        moved: a token that changes whenever rows are about to leave a space.
    """

    id_type: str
    spaces: dict[int, Space]
    side: str | None
    moved: str | None


def points_of(keys: Sequence[int | str]) -> list[Any]:
    """Return the ids of the points of rows: a UUID made of each row's own id."""
    return [str(uuid5(NAMESPACE, str(key))) for key in keys]


def blocks_of(items: list[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
