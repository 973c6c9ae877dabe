"""Which column of a file is which, guessed from the names, to say what to write in a recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence

# What people call the columns, in small letters, without signs and without what says "the id of".
VARIANTS = {
    "query": "query user u customer client member visitor session reviewer reader listener viewer "
    "account person author buyer consumer source",
    "candidate": "candidate item i movie film product article asin track song artist book isbn "
    "video show game page url document doc business place poi location sku offer ad target",
    "value": "value rating score star stars overall count plays clicks strength label y",
    "time": "time timestamp date datetime ts unixtime unixreviewtime createdat created day",
}
# Of a name, what says "the id of", or of which kind it is.
_AROUND = re.compile(r"(?<=.)(id|ids|idx|index|key|no|num|number|code|uuid|name)$")
_NUMBER = re.compile(r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$")


def guess(names: Sequence[str]) -> dict[str, str]:
    """For each of query, candidate, value and time, the column that seems to be it, if any is."""
    found: dict[str, str] = {}
    for role, variants in VARIANTS.items():
        for variant in variants.split():
            same = [n for n in names if variant in _plain(n) and n not in found.values()]
            if same and role not in found:
                found[role] = same[0]
    return found


def has_no_header(names: Sequence[str]) -> bool:
    """Whether a first line seems to be a row: a number is no name, and none of them is known."""
    return any(_NUMBER.match(name) for name in names) and not guess(names)


def lacking(
    source: str, wanted: Collection[str], names: Sequence[str], chosen: Mapping[str, str]
) -> str:
    """What to say of a table without some of its columns: what it has, and what to write.

    Args:
        source: what to call the table.
        wanted: the columns that it must have, by our names, that are not there.
        names: all that it has.
        chosen: `data.columns`, as far as it is written.
    """
    first = min(wanted, key=list(VARIANTS).index)
    has = ", ".join(names) or "none"
    if has_no_header(names):
        line = ",".join(("query", "candidate", "value", "time")[: max(2, len(names))])
        return (
            f"{source} has no column {first!r}, and its first line ({has}) seems to be a row: "
            f"write a line above it that names its columns, such as {line}."
        )
    seems = {r: n for r, n in guess(names).items() if n not in chosen.values()} | dict(chosen)
    what = {role: seems.get(role, "…") for role in ("query", "candidate")}
    what |= {role: seems[role] for role in ("value", "time") if role in seems}
    line = ", ".join(f"{role} = {json.dumps(n, ensure_ascii=False)}" for role, n in what.items())
    doubt = "with the right names in place of …" if "…" in what.values() else "if that is right"
    return (
        f"{source} has no column {first!r}; its columns are: {has}. Say in the recipe, under "
        f"[data], which is which, {doubt}: columns = {{{line}}}"
    )


def _plain(name: str) -> set[str]:
    """The ways to read a name: "User ID" is userid and user."""
    small = re.sub(r"[^0-9a-z]", "", name.lower())
    return {small, _AROUND.sub("", small)}
