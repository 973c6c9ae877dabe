"""Patterns of a row in the INSERT of a dump, and the escapes of its strings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

STRING = rb"'((?:[^'\\]|\\.|'')*)'"
# As STRING, but without a step for each letter: a possessive run cannot be split another way.
FAST_STRING = rb"(?:_binary )?'%s[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+%s'"
ANY = rb"(?:NULL|[-+]?[\d.]++(?:[eE][-+]?\d++)?|0x[0-9A-Fa-f]++|" + FAST_STRING % (b"", b"") + rb")"
INTEGER = rb"(-?\d{1,18})"
TEXT = FAST_STRING % (b"(", b")")
ROW_BEGIN = rb"\s*+\("
ROW_END = rb"\)\s*+(?:,|(?=;))"

ANY_ROW = ROW_BEGIN + rb"(?:" + ANY + rb"(?:," + ANY + rb")*)?" + ROW_END
WHOLE_ROW = re.compile(ANY_ROW, re.DOTALL)
# Where a row begins after one that cannot be read, be it for a quote or a parenthesis.
NEXT_ROW = re.compile(
    rb"\)\s*(?:,(?=\s*\()|(?=;\s*\n))|,(?=" + ANY_ROW + rb")|(?=;\s*\n)", re.DOTALL
)
ESCAPE = re.compile(rb"\\(.)|''", re.DOTALL)
ESCAPED = {b"0": b"\0", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"Z": b"\x1a"}
ESCAPED |= {b"%": b"\\%", b"_": b"\\_"}  # these two keep their backslash, says MySQL


@cache
def row_pattern(
    written: tuple[str, ...], columns: tuple[tuple[str, bool, bool], ...]
) -> tuple[re.Pattern[bytes], list[str]]:
    """Return a pattern of one row and its end, and the names of the columns that it captures.

    Args:
        written: all columns of a row, in order.
        columns: (name, True for an integer, True if never NULL) of each column to capture.
    """
    wanted = {}
    for name, integer, required in columns:
        field = INTEGER if integer else TEXT
        wanted[name] = field if required else rb"(?:NULL|" + field + rb")"
    fields = [wanted.get(name, ANY) for name in written]
    pattern = re.compile(ROW_BEGIN + rb",".join(fields) + ROW_END, re.DOTALL)
    return pattern, [name for name in written if name in wanted]


def consecutive(pattern: re.Pattern[bytes], text: bytes, at: int) -> Iterator[re.Match[bytes]]:
    """Yield matches from `at` on; each begins at the end of the one before."""
    scanner = pattern.scanner(text, at)  # type: ignore[attr-defined]
    return iter(scanner.match, None)


def unescape(values: pa.Array) -> pa.Array:
    """Return binary values [n] with the escapes of the dump undone."""
    marked = pc.fill_null(
        pc.or_(pc.match_substring(values, b"\\"), pc.match_substring(values, b"''")), False
    )
    undone = [ESCAPE.sub(_undo, value) for value in values.filter(marked).to_pylist()]
    return pc.replace_with_mask(values, marked, pa.array(undone, pa.binary())) if undone else values


def _undo(match: re.Match[bytes]) -> bytes:
    letter = match[1]
    return b"'" if letter is None else ESCAPED.get(letter, letter)
