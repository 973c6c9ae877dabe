"""The one rule of names, for lineages, labels, consumers and sides."""

from __future__ import annotations

import re

from evergram.errors import LineageError

# A name becomes part of addresses (`films@stable`), paths and printed lines, so no character may
# mean anything to one of these.
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
RULE = (
    "a name is made of letters (a-z, A-Z), digits, '.', '_' and '-', begins with a letter or a "
    "digit, and is no longer than 128 characters"
)


def is_name(text: str) -> bool:
    """Say whether a text can be a name."""
    return re.fullmatch(NAME, text) is not None


def check_name(text: str, of: str) -> None:
    """Refuse a text that cannot be a name.

    Args:
        of: the thing to be named, such as "a label".
    Raises: LineageError.
    """
    if not is_name(text):
        raise LineageError(f"{text!r} cannot be the name of {of}: {RULE}; choose another.")
