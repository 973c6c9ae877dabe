"""The record of a store in Qdrant, and the ids of its points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID, uuid5

from evergram.errors import FormatError, StoreError
from evergram.stores.store import ID_TYPES, Space

T = TypeVar("T")

# Every point's id is made with it, so it never changes.
NAMESPACE = UUID("6f0d3a52-6f4e-5c0b-9a3c-0e2f9b1c7d84")

FORMAT = 1


@dataclass(frozen=True)
class QdrantRecord:
    """The record of a store, its small collection.

    Args:
        side: of the rows; None until it is set.
        moved: a token that changes whenever rows are about to leave a space.
        oversample: of the codes of each space that has codes, by version.
    """

    id_type: str
    spaces: dict[int, Space]
    side: str | None
    moved: str | None
    oversample: dict[int, int] = field(default_factory=dict)


def record_of(payloads: Mapping[Any, Any], shown: str) -> QdrantRecord:
    """Return the record in the points of a store's small collection.

    Args:
        payloads: by the points' ids.
        shown: how errors name the store.
    Raises: FormatError: it is of a later format. StoreError: the collection is no record.
    """
    try:
        head = payloads[0]
        if head["format_version"] != FORMAT:
            raise FormatError(
                f"{shown} has format {head['format_version']}; this Evergram reads {FORMAT}: use a "
                "later Evergram."
            )
        spaces = {one["version"]: Space(**one) for key, one in payloads.items() if key != 0}
        oversample = {int(v): int(n) for v, n in (head.get("oversample") or {}).items()}
        record = QdrantRecord(
            head["id_type"],
            dict(sorted(spaces.items())),
            head.get("side"),
            head.get("moved"),
            oversample,
        )
        if record.id_type not in ID_TYPES:
            raise ValueError(f"id_type is {record.id_type!r}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, FormatError):
            raise
        raise StoreError(
            f"{shown} is a collection of something else, or damaged ({type(error).__name__}: "
            f"{error}); give another name after #, or restore it."
        ) from error
    return record


def not_ours(collection: str, shown: str) -> StoreError:
    """Return the error about a collection with points that a store did not write."""
    return StoreError(
        f"There is a collection {collection} that is not of the store {shown}; give another name "
        "after #, or rename that collection."
    )


def points_of(keys: Sequence[int | str]) -> list[Any]:
    """Return the ids of the points of rows: a UUID made of each row's own id."""
    return [str(uuid5(NAMESPACE, str(key))) for key in keys]


def blocks_of(items: list[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
