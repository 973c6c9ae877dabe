"""Permissions of the files of a lineage."""

from __future__ import annotations

import stat
from pathlib import Path

from evergram.atomic_files import OWNER_ALONE


def file_mode(root: Path) -> int:
    """Return the permissions that new files of a lineage get: those of its `lineage.json`.

    Only its owner reads a new lineage; `chmod -R g+rX DIR`, once, shares it with a group.
    """
    try:
        return stat.S_IMODE((root / "lineage.json").stat().st_mode) & 0o666
    except FileNotFoundError:
        return OWNER_ALONE
