"""The one rule of names: of lineages, versions, labels, consumers and sides."""

from __future__ import annotations

import re

from evergram.errors import LineageError

# A name stands in addresses (`films@stable`), in folders and in what is printed: it has nothing in
# it that means anything to any of these.
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
RULE = (
    "a name is made of letters (a-z, A-Z), digits, '.', '_' and '-', begins with a letter or a "
    "digit, and is no longer than 128 characters"
)


def is_name(text: str) -> bool:
    """Whether a text can be a name."""
    return re.fullmatch(NAME, text) is not None


def check_name(text: str, of: str) -> None:
    """Raises: LineageError: the text cannot be the name of what `of` says."""
    if not is_name(text):
        raise LineageError(f"{text!r} cannot be the name of {of}: {RULE}; choose another.")
