"""Around pydantic's parser: count and cut the lists of a large JSON body before any is parsed.

A parsed list of two-byte elements takes a hundred times its bytes, and the parser lets no other
thread run meanwhile. So the lists of a large body are counted and cut into pieces, by its brackets,
commas and quotes alone. A body with too many elements is refused unparsed; the pieces of any other
are parsed one at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evergram.serving.http.answers.errors import RefusedError

# Bytes of a body that is parsed whole, and of one piece of a larger body.
PIECE = 1 << 16
# Members that the object may have, and bytes of a member's name.
MEMBERS, NAME = 64, 1024
_ESCAPED = re.compile(rb"\\[\s\S]")
_OPEN, _CLOSE, _COMMA, _QUOTE = b"{[", b"}]", ord(","), ord('"')

Body = bytes | bytearray
Limit = Callable[[str], int]


@dataclass(frozen=True)
class Piece:
    """Neighbouring elements of a list.

    Args:
        body: the whole request.
        begin, end: positions of the brackets or commas around the elements.
        count: how many elements there are.
    """

    body: Body
    begin: int
    end: int
    count: int

    @property
    def text(self) -> bytes:
        """Return the elements as a JSON list of their own."""
        return b"".join((b"[", memoryview(self.body)[self.begin + 1 : self.end], b"]"))


@dataclass(frozen=True)
class CutBody:
    """A JSON object without most of its lists' elements, and these elements in pieces.

    Args:
        short: the object, with only the first element of each list that is a member of it.
        lists: the pieces of each such list, by the member's name.
    """

    short: bytes
    lists: dict[str, list[Piece]]


@dataclass
class _List:
    """A member that is a list: the positions of its brackets, and of its elements' commas."""

    name: str
    start: int
    end: int = -1
    commas: list[int] = field(default_factory=list)

    @property
    def first(self) -> int:
        """Return the position where the first element ends."""
        return self.commas[0] if self.commas else self.end


def cut_body(body: Body, most: Limit, longest: Limit) -> CutBody:
    """Count and cut the lists of a JSON object.

    Nothing is parsed. Parsing `CutBody.short` and every piece parses the whole body, and finds
    whatever is wrong in it.

    Args:
        most: returns how many elements the list of a name may have.
        longest: returns how many bytes one of its elements may have; for "", how many bytes may
            stand outside of lists.
    Raises: RefusedError: a limit is passed, or the body is no JSON object.
    """
    lists = list(_lists(body, most, longest("")))
    beside = len(body) - sum(one.end - one.start for one in lists)
    if beside > longest(""):
        what = "All that the request has beside the elements of its lists"
        raise _too_long(what, beside, longest(""), None)
    pieces = {one.name: list(_pieces(body, one, longest(one.name))) for one in lists}
    whole, after = memoryview(body), 0
    parts = []
    for one in lists:
        parts.append(whole[after : one.first])
        after = one.end
    return CutBody(b"".join([*parts, whole[after:]]), pieces)


def _pieces(body: Body, one: _List, longest: int) -> Iterator[Piece]:
    """Yield the elements of a list in pieces of at most PIECE bytes, or of one element."""
    if one.first - one.start <= longest and not body[one.start + 1 : one.first].strip():
        if one.commas:
            raise _no_json(f"{one.name[:80]!r} begins with a comma")
        return
    begin, count = one.start, 0
    ends = [*one.commas, one.end]
    for before, end in zip([one.start, *one.commas], ends, strict=True):
        if end - before - 1 > longest:
            what = f"An element of {one.name[:80]!r}"
            raise _too_long(what, end - before - 1, longest, one.name)
        if count and end - begin > PIECE:
            yield Piece(body, begin, before, count)
            begin, count = before, 0
        count += 1
    yield Piece(body, begin, one.end, count)


def _lists(body: Body, most: Limit, longest: int) -> Iterator[_List]:
    """Yield the lists that are members of the object, in order."""
    current: _List | None = None
    members, member = 0, -1
    for at, sign, depth in _structure(body):
        if depth == 1 and sign in _OPEN:
            if member >= 0 or sign != _OPEN[0]:
                raise _no_json("it should be one JSON object")
            member = at
        elif depth == 1 and sign == _COMMA:
            member, members = at, members + 1
            if members >= MEMBERS:
                what = f"The request has more than {MEMBERS} fields; no route takes so many."
                raise RefusedError(400, "request", what)
        elif depth == 1:
            if current is not None:
                current.end = at
                yield current
            current = None
        elif sign == _OPEN[1]:
            current = _List(_name(body[member + 1 : min(at, member + NAME)]), at)
        elif current is None:
            if at - member > longest:
                raise _too_long("A field that is no list", at - member, longest, None)
        else:
            current.commas.append(at)
            limit = most(current.name)
            if len(current.commas) >= limit:
                what = f"{current.name[:80]!r} has more than the {limit} elements of one request."
                raise RefusedError(413, "limit", what, current.name)


def _structure(body: Body) -> Iterator[tuple[int, int, int]]:
    """Yield the brackets and commas of the object and of its members, outside of strings.

    Yields: the position of each, its byte, and the depth of brackets after it.
    """
    depth, inside, escaping = 0, 0, False
    for start in range(0, len(body), PIECE):
        text = bytes(body[start : start + PIECE])
        if escaping:
            text = b"_" + text[1:]
        if b"\\" in text:
            text = _ESCAPED.sub(b"__", text)
        escaping = text.endswith(b"\\")
        signs = np.frombuffer(text, np.uint8)
        quoted = np.bitwise_xor.accumulate((signs == _QUOTE).view(np.uint8)) ^ inside
        inside = int(quoted[-1])
        closing = _is_either(signs, _CLOSE)
        opening = _is_either(signs, _OPEN)
        places = np.flatnonzero((opening | closing | (signs == _COMMA)) & (quoted == 0))
        if not len(places):
            continue
        depths = depth + np.cumsum(opening[places].astype(np.int64) - closing[places])
        depth = int(depths[-1])
        if depths.min() < 0:
            raise _no_json("a bracket is closed that was not opened")
        near = (depths == 1) | ((depths == 2) & ~closing[places])
        where, deep = places[near], depths[near]
        yield from zip((where + start).tolist(), signs[where].tolist(), deep.tolist(), strict=True)
    if inside or depth:
        raise _no_json("it ends before a bracket or a text is closed")


def _is_either(signs: npt.NDArray[np.uint8], either: bytes) -> npt.NDArray[np.bool_]:
    matches: npt.NDArray[np.bool_] = (signs == either[0]) | (signs == either[1])
    return matches


def _name(text: Body) -> str:
    """Return the name of a member, from the bytes before its value."""
    try:
        name = json.loads(bytes(text).rstrip().removesuffix(b":"))
    except (ValueError, RecursionError):
        name = None
    if not isinstance(name, str):
        raise _no_json("a list of the request has no name")
    return name


def _no_json(why: str) -> RefusedError:
    return RefusedError(400, "request", f"The body is not a request in JSON: {why}.")


def _too_long(what: str, length: int, limit: int, field: str | None) -> RefusedError:
    return RefusedError(
        413, "limit", f"{what} is {length} bytes long; at most {limit} are read.", field
    )
