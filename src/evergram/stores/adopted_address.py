"""What an address says of a table or a collection of somebody's own: names, by version and use."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote, unquote

from evergram.errors import DataError

_VERSION = re.compile(r"v(0|[1-9][0-9]{0,8})")


@dataclass(frozen=True)
class AdoptedNames:
    """The names after the # of an address.

    Args:
        others: those of one kind of store alone, such as "table".
        id: where the ids are; None if the address does not say.
        vectors: version to the column, or the named vector, that holds its vectors.
        filters: columns or fields that filters may name.
        fragment: all of it again, as an address writes it.
    """

    others: dict[str, str]
    id: str | None
    vectors: dict[int, str]
    filters: tuple[str, ...]
    fragment: str


def read_names(
    rest: str, required: str, form: str, optional: Sequence[str] = (), *, unnamed: bool = False
) -> AdoptedNames:
    """Parse `table=TABLE&id=COLUMN&v0=COLUMN&filter=COLUMN,COLUMN`.

    Args:
        rest: what stands after the #.
        required: the key that must be there, such as "table".
        form: of the whole address, for the error.
        optional: further keys.
        unnamed: whether a version may be in a vector without a name, `v0=`.
    Raises: DataError: it is wrong; it is not repeated, as a password may be in it.
    """
    names: dict[str, str] = {}
    for part in rest.split("&"):
        key, equals, name = part.partition("=")
        whole = name if key == "filter" else unquote(name)
        is_version = _VERSION.fullmatch(key) is not None
        known = is_version or key in (required, "id", "filter", *optional)
        empty = not whole and not (unnamed and is_version and equals)
        if key in names or empty or "\0" in unquote(name) or not known:
            raise DataError(f"The address of a table of your own is {form}.")
        names[key] = whole
    vectors = {int(key[1:]): name for key, name in names.items() if _VERSION.fullmatch(key)}
    if required not in names or not vectors:
        raise DataError(f"The address of a table of your own is {form}.")
    if len(set(vectors.values())) < len(vectors):
        raise DataError("Two versions are said to be in one column; each has a column of its own.")
    # Without spaces, so that a service finds the whole address in an error, and leaves it out.
    fragment = "&".join(
        f"{key}={quote(name, safe=',%' if key == 'filter' else '')}" for key, name in names.items()
    )
    return AdoptedNames(
        others={key: name for key, name in names.items() if key in (required, *optional)},
        id=names.get("id"),
        vectors=dict(sorted(vectors.items())),
        filters=tuple(unquote(one) for one in names.get("filter", "").split(",") if one),
        fragment=fragment,
    )


def canonical_uuids(texts: Sequence[str]) -> list[str]:
    """Return those of some texts that are UUIDs as they are usually written, in lower case."""
    known = []
    for text in texts:
        with suppress(ValueError):
            known += [text] if str(uuid.UUID(text)) == text else []
    return known
