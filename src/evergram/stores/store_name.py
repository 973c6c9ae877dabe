"""What a store in a database may be called."""

from __future__ import annotations

import re

from evergram.errors import DataError

# Such a name is one in every database, and in a file system, as it stands.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,39}")


def checked_name(name: str) -> str:
    """The name itself. Raises: DataError: no store may have it."""
    if not NAME.fullmatch(name):
        raise DataError(
            f"{name!r} cannot be the name of a store: at most 40 ASCII letters, digits, _ and - "
            "are allowed, and no - in front."
        )
    return name
