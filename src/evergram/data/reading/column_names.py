"""Guess the roles of columns from their names, for errors that say what to write."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from unicodedata import normalize

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError

# Usual names of the columns in English, German, French and Spanish, in small letters, without
# accents, signs and "id" and its like.
VARIANTS = {
    "query": "query user u customer client member visitor session reviewer reader listener viewer "
    "account person author buyer consumer source kunde kunden nutzer benutzer kaufer kaeufer "
    "besteller mitglied utilisateur acheteur membre usuario cliente comprador",
    "candidate": "candidate item i movie film product article asin track song artist book isbn "
    "video show game page url document doc business place poi location sku offer ad target artikel "
    "produkt ware buch produit livre producto articulo libro pelicula",
    "value": "value rating score star stars overall count plays clicks strength label y quantity "
    "bewertung sterne wert anzahl menge quantite cantidad valor",
    "time": "time timestamp date datetime ts unixtime unixreviewtime createdat created day zeit "
    "zeitpunkt zeitstempel datum kaufdatum bestelldatum heure fecha hora",
}
# The end of a name that says "the id of", or of which kind it is.
_AROUND = re.compile(r"(?<=.)(id|ids|idx|index|key|no|nr|num|number|nummer|code|uuid|name)$")
# A date, or a Unix time in seconds or smaller units.
_TIME = re.compile(r"^\s*(\d{4}-\d\d-\d\d|[1-3]\d{9}(\d{3}){0,3}(\.\d+)?\s*$)")
_NUMBER = re.compile(r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$")


def guess(names: Sequence[str]) -> dict[str, str]:
    """Return for query, candidate, value and time the column that its name suggests, if any."""
    columns: dict[str, str] = {}
    for role, variants in VARIANTS.items():
        for variant in variants.split():
            same = [n for n in names if variant in _plain(n) and n not in columns.values()]
            if same and role not in columns:
                columns[role] = same[0]
    return columns


def suggestions(names: Sequence[str]) -> dict[str, list[str]]:
    return {
        role: [name for name in names if _plain(name) & set(variants.split())]
        for role, variants in VARIANTS.items()
    }


def has_no_header(names: Sequence[str]) -> bool:
    """Return True if a first line looks like a row: it has a number or a date, and no known
    name."""
    return any(_NUMBER.match(n) or _TIME.match(n) for n in names) and not guess(names)


def refuse_unknown(source: str, wanted: Iterable[str], names: Sequence[str]) -> None:
    """Raise a DataError that names all columns that somebody named and `source` lacks."""
    absent = [name for name in dict.fromkeys(wanted) if name not in names]
    if absent:
        listed = ", ".join(f"{name!r}{did_you_mean(name, names)}" for name in absent)
        raise DataError(
            f"{source} has no column{'s' * (len(absent) > 1)} {listed}; its columns are: "
            f"{', '.join(names)}."
        )


def lacking(
    source: str,
    wanted: Collection[str],
    names: Sequence[str],
    chosen: Mapping[str, str],
    *,
    header_line: bool = True,
) -> str:
    """Return the error about missing columns, `wanted` by role, with the line or the options to
    write; `header_line` is True if the names are the first line of a text, which may be a row."""
    first = min(wanted, key=list(VARIANTS).index)
    has, likely = ", ".join(names) or "none", guess(names)
    words = ["query", "candidate", "value", "time"][: max(2, len(names))]
    if len(names) == 3 and _TIME.match(names[2]):
        words[2] = "time"
    line = f"write a line above it that names its columns, such as {','.join(words)}."
    if header_line and has_no_header(names):
        what_it_is = f"its first line ({has}) seems to be a row"
        return f"{source} has no column {first!r}, and {what_it_is}: {line}"
    # Text ids without a header look like unusual names, and only the person knows which they are.
    row = "" if not header_line or chosen or likely else f"If that is a row, {line} "
    what = {"query": "…", "candidate": "…"}
    what |= {role: n for role, n in likely.items() if n not in chosen.values()} | dict(chosen)
    roles = ", ".join(f"{role} = {json.dumps(n, ensure_ascii=False)}" for role, n in what.items())
    options = " ".join(f"--column {role}={name}" for role, name in what.items())
    return (
        f"{source} has no column {first!r}; its columns are: {has}. {row}Say which is which "
        f"({options}); in a recipe, under [data], columns = {{{roles}}}"
    )


def _plain(name: str) -> set[str]:
    """Return the plain forms of a name: those of "User ID" are userid and user."""
    small = re.sub(r"[^0-9a-z]", "", normalize("NFKD", name.lower()))
    return {small, _AROUND.sub("", small)}
