"""Read and write the provenance of a file of embeddings: the version that its vectors are of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evergram.errors import DataError

# The version whose space the vectors are in, and the one that they were computed from.
FINGERPRINT = "evergram.fingerprint"
COMPUTED_FROM = "evergram.computed_from"
# The encoder that made the vectors from texts: JSON of `texts.record.TextEncoderRecord`.
TEXT_ENCODER = "evergram.text_encoder"
# The type of the ids of a .npy file, which lie beside it as text: "int64" or "string".
ID_TYPE = "evergram.id_type"


def provenance_of(fingerprint: str, computed_from: str) -> dict[str, str]:
    """Return the metadata to write with vectors.

    Args:
        fingerprint: of the version whose space the vectors are in.
        computed_from: fingerprint of the version that embedded the objects.
    """
    return {FINGERPRINT: fingerprint, COMPUTED_FROM: computed_from}


def provenance_in(metadata: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return the provenance among a file's metadata, whose keys and values are bytes or text."""
    ours = {}
    for key, value in (metadata or {}).items():
        name = key.decode(errors="replace") if isinstance(key, bytes) else str(key)
        if name in (FINGERPRINT, COMPUTED_FROM, TEXT_ENCODER):
            ours[name] = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return ours


def provenance_file(path: Path) -> Path:
    """Return the path of the JSON with a file's provenance, such as `NAME.npy.json`."""
    return path.with_name(f"{path.name}.json")


def read_provenance_file(path: Path) -> dict[str, Any]:
    """Return the object in the JSON file beside `path`; empty without such a file.

    Raises: DataError: that file is damaged.
    """
    beside = provenance_file(path)
    if not beside.is_file():
        return {}
    try:
        content = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{beside} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise DataError(
            f"{beside} is not a JSON object of provenance; remove it, or write {path} again."
        )
    return content
