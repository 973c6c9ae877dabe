"""What a file of embeddings says of itself: which space its vectors are in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evergram.errors import DataError

# The version whose space the vectors are in, and the one that they were computed from.
FINGERPRINT = "evergram.fingerprint"
COMPUTED_FROM = "evergram.computed_from"
# Beside a .npy file, whose ids are lines of text: whether they were "int64" or "string".
ID_TYPE = "evergram.id_type"


def marks(fingerprint: str, computed_from: str) -> dict[str, str]:
    """What is written with vectors: their own version's fingerprint, and that of the embedding
    model's version that they come from."""
    return {FINGERPRINT: fingerprint, COMPUTED_FROM: computed_from}


def marks_of(metadata: Mapping[Any, Any] | None) -> dict[str, str]:
    """Ours among a file's metadata, of bytes or text."""
    found = {}
    for key, value in (metadata or {}).items():
        name = key.decode(errors="replace") if isinstance(key, bytes) else str(key)
        if name in (FINGERPRINT, COMPUTED_FROM):
            found[name] = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return found


def marks_beside(path: Path) -> Path:
    """Where the marks of a file without room for them are: `NAME.npy.json`, `NAME.csv.json`."""
    return path.with_name(f"{path.name}.json")


def read_beside(path: Path) -> dict[str, Any]:
    """What is said beside a file, nothing where there is nothing; `marks_of` it are its marks.

    Raises: DataError: it is damaged.
    """
    beside = marks_beside(path)
    if not beside.is_file():
        return {}
    try:
        found = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{beside} cannot be read: {error}.") from error
    if not isinstance(found, dict):
        raise DataError(f"{beside} holds no object of marks; remove it, or write {path} again.")
    return found
