"""What an address says of a table or a collection of somebody's own: names, by version and use."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote, unquote

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError

_VERSION = re.compile(r"v(0|[1-9][0-9]{0,8})")
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


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


def split_address(address: str, form: str) -> tuple[str, str]:
    """Return what stands before the # of an address without its scheme, and what stands after it.

    Raises: DataError: one of them is missing.
    """
    place, hash_sign, rest = address.rpartition("#")
    if not hash_sign:
        raise wrong_address("there is no # in it, after which the names stand", form)
    if not place:
        raise wrong_address("nothing stands before the #, where the place of the data is", form)
    return place, rest


def wrong_address(why: str, form: str) -> DataError:
    """Return the error for an address that is wrong.

    Args:
        why: which part of it, in a clause that repeats no part, as a password may be in it.
        form: of the whole address.
    """
    return DataError(f"The address of a store is wrong: {why}. A table of your own is {form}.")


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
    Raises: DataError: it is wrong; no name in it is repeated, as a password may be among them.
    """
    names: dict[str, str] = {}
    known = (required, "id", *optional, "filter")
    for number, part in enumerate(rest.split("&"), start=1):
        key, equals, name = part.partition("=")
        is_version = _VERSION.fullmatch(key) is not None
        why = None
        if not part:
            why = f"part {number} after the # is empty"
        elif not is_version and key not in known:
            keys = f"{', '.join(known)} or v and a version's number, such as v0"
            why = f"part {number} after the # begins with no key and =; a key is {keys}"
            why += did_you_mean(key, known)
        elif not equals:
            why = f"{key!r}, part {number} after the #, has no = and no name after it"
        elif not name and not (unnamed and is_version):
            why = f"no name stands after {key}="
        elif key in names:
            why = f"{key}= is in it twice"
        else:
            why = _escape_problem(key, name)
        if why is not None:
            raise wrong_address(why, form)
        names[key] = name if key == "filter" else unquote(name)
    vectors = {int(key[1:]): name for key, name in names.items() if _VERSION.fullmatch(key)}
    if required not in names or not vectors:
        missing = f"{required}=" if required not in names else "v0=, or of another version,"
        raise wrong_address(f"{missing} is missing after the #", form)
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


def _escape_problem(key: str, name: str) -> str | None:
    """Return what is wrong with the escapes of a name, for a sentence; None if nothing is."""
    if _NO_ESCAPE.search(name):
        return (
            f"in the name after {key}= there is a % without two hexadecimal digits after it; a % "
            "itself is written %25"
        )
    if "\0" in unquote(name):
        return f"in the name after {key}= there is a NUL (%00), which no name has"
    try:
        unquote(name, errors="strict")
    except UnicodeDecodeError:
        return f"the escapes with % in the name after {key}= are no UTF-8"
    return None


def canonical_uuids(texts: Sequence[str]) -> list[str]:
    """Return those of some texts that are UUIDs as they are usually written, in lower case."""
    known = []
    for text in texts:
        with suppress(ValueError):
            known += [text] if str(uuid.UUID(text)) == text else []
    return known
