"""The rule for the name of a store in a database."""

from __future__ import annotations

import re

from evergram.errors import DataError

# Every database and file system takes such a name as it is.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,39}")


def checked_name(name: str) -> str:
    """Return the name. Raises: DataError: no store may have it."""
    if not NAME.fullmatch(name):
        raise DataError(
            f"{name!r} cannot be the name of a store; give one of at most 40 ASCII letters, "
            "digits, _ and -, and no - in front."
        )
    return name
