"""Who reads which version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path


def pinned_to(path: Path, resolve: Callable[[str], int]) -> dict[str, int]:
    """Consumer to the version that it is pinned to, of a lineage's `consumers.json`."""
    file = path / "consumers.json"
    if not file.is_file():
        return {}
    found = json.loads(file.read_text())["consumers"]
    return {c["name"]: resolve(c["pinned"]) for c in found}
