"""The lineage that a file of vectors is published in."""

from __future__ import annotations

from pathlib import Path

from evergram.errors import LineageError
from evergram.lineage.lineage import Lineage

# Name of a new lineage, where none is chosen.
NAME = "embeddings"


def open_or_create(place: str | Path, name: str | None = None) -> Lineage:
    """Return the lineage at a place, created where there is none.

    Args:
        place: folder or address of the lineage.
        name: of a new lineage, "embeddings" by default; refused for one that exists.
    Raises: LineageError: a name was given for a lineage that exists.
    """
    if not Lineage.exists(place):
        return Lineage.create(place, NAME if name is None else name)
    if name is not None:
        raise LineageError(f"--name is of a new lineage, and {place} is one already; leave it out.")
    return Lineage.open(place)
