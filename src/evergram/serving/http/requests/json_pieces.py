"""A JSON object of any size, read without holding much more than it may ask for.

A list of two-byte elements takes a hundred times its bytes once it is parsed, and the parser lets
no other thread run meanwhile. So the lists of a large body are first counted and cut into pieces,
by its brackets, commas and quotes alone, and each piece is then parsed by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evergram.serving.http.errors import RefusedError

# Bytes of a body that is parsed as it is, and of a piece of a larger one.
PIECE = 1 << 16
# Members of the object, and bytes of the name of one.
MEMBERS, NAME = 64, 1024
_ESCAPED = re.compile(rb"\\[\s\S]")
_OPEN, _CLOSE, _COMMA, _QUOTE = b"{[", b"}]", ord(","), ord('"')

Body = bytes | bytearray
Limit = Callable[[str], int]


@dataclass(frozen=True)
class Piece:
    """Some elements of a list, next to each other.

    Args:
        body: the whole request.
        begin, end: what stands around the elements.
        count: how many they are.
    """

    body: Body
    begin: int
    end: int
    count: int

    @property
    def text(self) -> bytes:
        """Return a list of them alone, as JSON."""
        return b"".join((b"[", memoryview(self.body)[self.begin + 1 : self.end], b"]"))


@dataclass(frozen=True)
class Cut:
    """What `cut` returns.

    Args:
        short: the object; of every list of several elements the first alone.
        lists: by name, all elements of the lists that are members of the object.
    """

    short: bytes
    lists: dict[str, list[Piece]]


@dataclass
class _List:
    """A member that is a list: where its brackets are, and the commas between its elements."""

    name: str
    start: int
    end: int = -1
    commas: list[int] = field(default_factory=list)

    @property
    def first(self) -> int:
        """Return where its first element ends."""
        return self.commas[0] if self.commas else self.end


def cut(body: Body, most: Limit, longest: Limit) -> Cut:
    """Count and cut the lists of a JSON object. Nothing is parsed here: whoever parses `short` and
    every piece has parsed the whole, and is told of whatever is wrong in it.

    Args:
        most: elements that the list of a name may have.
        longest: bytes that one element of it may have; of "" all that is in no list.
    Raises: RefusedError: there are more, or it is no JSON object.
    """
    lists = list(_lists(body, most, longest("")))
    beside = len(body) - sum(one.end - one.start for one in lists)
    if beside > longest(""):
        raise _too_long("What is in no list of the request", beside, longest(""), None)
    pieces = {one.name: list(_pieces(body, one, longest(one.name))) for one in lists}
    whole, after = memoryview(body), 0
    parts = []
    for one in lists:
        parts.append(whole[after : one.first])
        after = one.end
    return Cut(b"".join([*parts, whole[after:]]), pieces)


def _pieces(body: Body, one: _List, longest: int) -> Iterator[Piece]:
    """Yield as many elements together as have no more than PIECE bytes."""
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
    """Yield the lists that are members of the object, in their order."""
    current: _List | None = None
    members, member = 0, -1
    for at, sign, depth in _marks(body):
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


def _marks(body: Body) -> Iterator[tuple[int, int, int]]:
    """Yield the brackets and commas of the object, and the beginnings and commas of its members,
    outside of texts: where each is, its sign, and how deep it is from there on."""
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
    found: npt.NDArray[np.bool_] = (signs == either[0]) | (signs == either[1])
    return found


def _name(text: Body) -> str:
    """Read the name of a member, from the text before its value."""
    try:
        found = json.loads(bytes(text).rstrip().removesuffix(b":"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, str):
        raise _no_json("a list of the request has no name")
    return found


def _no_json(why: str) -> RefusedError:
    return RefusedError(400, "request", f"The body is not a request in JSON: {why}.")


def _too_long(what: str, length: int, limit: int, field: str | None) -> RefusedError:
    return RefusedError(
        413, "limit", f"{what} is {length} bytes long; at most {limit} are read.", field
    )
