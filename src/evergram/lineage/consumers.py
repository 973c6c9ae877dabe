"""Who reads which version."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from evergram.errors import UnknownVersionError


def pinned_to(path: Path, resolve: Callable[[str], int]) -> dict[str, int]:
    """Of every consumer, the version it is pinned to now; one whose label is no more reads none."""
    file = path / "consumers.json"
    found = {}
    for consumer in json.loads(file.read_text())["consumers"] if file.is_file() else ():
        with suppress(UnknownVersionError):
            found[consumer["name"]] = resolve(consumer["pinned"])
    return found
