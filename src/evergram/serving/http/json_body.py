"""Parse the JSON of a request into its schema, the lists of a large one in pieces.

A parsed list of two-byte elements takes a hundred times its bytes, and the parser lets no other
thread run meanwhile: pydantic needs 11 seconds and gigabytes to refuse 16 MB of empty lists. So the
lists of a large body are first counted and cut into pieces, by its brackets, commas and quotes
alone. A body with too many elements is refused unparsed; the pieces of any other are parsed one at
a time. `python -m benchmarks serving-fast-paths` measures both ways.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, TypeAdapter, ValidationError

from evergram.serving.http.errors import RefusedError
from evergram.serving.http.request_schemas import problem_of
from evergram.serving.settings import ServiceSettings

T = TypeVar("T", bound=BaseModel)
V = TypeVar("V")
Body = bytes | bytearray
Limit = Callable[[str], int]

# Bytes of an object with features or of an id, and of everything outside of lists.
ELEMENT = 1 << 17
# Bytes of a coordinate, with the separator after it.
COORDINATE = 64
# Bytes of a character of a text, which may be two escapes of six.
CHARACTER = 12
# Bytes of a body that is parsed whole, and of one piece of a larger body.
PIECE = 1 << 16
# Members that the object may have, and bytes of a member's name.
MEMBERS, NAME = 64, 1024
_ESCAPED = re.compile(rb"\\[\s\S]")
_OPEN, _CLOSE, _COMMA, _QUOTE = b"{[", b"}]", ord(","), ord('"')


@dataclass(frozen=True)
class Piece:
    """Neighbouring elements of a list, between two of its brackets or commas in the body."""

    body: Body
    begin: int
    end: int
    count: int

    @property
    def text(self) -> bytes:
        """Return the elements as a JSON list of their own."""
        return b"".join((b"[", memoryview(self.body)[self.begin + 1 : self.end], b"]"))


@dataclass(frozen=True)
class Parsed(Generic[T]):
    """A request that fits its schema.

    Args:
        request: the request. Where it was large, its lists have only their first element here.
        lists: the unparsed pieces of those lists, by name.
    """

    request: T
    lists: Mapping[str, Sequence[Piece]]

    def count(self, name: str) -> int:
        """Return how many elements a list has."""
        if name in self.lists:
            return sum(piece.count for piece in self.lists[name])
        return len(getattr(self.request, name))

    def parts(self, name: str, kind: TypeAdapter[list[V]]) -> Iterator[list[V]]:
        """Yield the elements of a list, some at a time; `kind` validates them.

        Raises: RefusedError: an element is not valid.
        """
        if name not in self.lists:
            yield getattr(self.request, name)
            return
        earlier = 0
        for piece in self.lists[name]:
            try:
                elements = kind.validate_json(piece.text)
            except ValidationError as error:
                raise _refusal(error, name, earlier) from None
            if len(elements) != piece.count:
                raise RefusedError(
                    400, "request", f"The body is not JSON: {name!r} has a comma too many.", name
                )
            yield elements
            earlier += piece.count


def parse(kind: type[T], body: Body, settings: ServiceSettings) -> Parsed[T]:
    """Parse a request into its schema; the lists of a large one are only counted here.

    Raises: RefusedError: the request does not fit the schema, or exceeds a limit.
    """
    short, lists = body, {}
    if len(body) > PIECE:
        cut = cut_body(
            body,
            lambda name: settings.max_dim if name == "vector" else settings.max_batch,
            lambda name: _most_bytes(name, settings),
        )
        short, lists = cut.short, cut.lists
    try:
        request = kind.model_validate_json(short)
    except ValidationError as error:
        raise _refusal(error) from None
    in_pieces = {k: v for k, v in lists.items() if isinstance(getattr(request, k), list)}
    return Parsed(request, in_pieces)


def _most_bytes(name: str, settings: ServiceSettings) -> int:
    """Return how many bytes an element of a list may have; of "", all that is in no list."""
    if name == "vectors":
        return COORDINATE * settings.max_dim
    return ELEMENT + (CHARACTER * settings.max_text if name in ("", "input") else 0)


def _refusal(error: ValidationError, name: str | None = None, earlier: int = 0) -> RefusedError:
    """Return the refusal of a request, or of a piece of the list `name`, `earlier` elements in."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    if name is not None:
        for details in errors:
            index, *rest = details["loc"] or (0,)
            place = index + earlier if isinstance(index, int) else index
            details["loc"] = (name, place, *rest)
    message, field = problem_of(errors)
    return RefusedError(400, "request", message, field)


@dataclass(frozen=True)
class CutBody:
    """A JSON object with only the first element of each list that is a member of it, and the pieces
    of those lists by name."""

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
    """Count and cut the lists of a JSON object, without parsing anything.

    Args:
        most: returns how many elements the list of a name may have.
        longest: returns how many bytes one of its elements may have; for "", how many bytes may
            stand outside of lists.
    Raises: RefusedError: a limit is exceeded, or the body is not a JSON object.
    """
    lists = list(_lists(body, most, longest("")))
    outside = len(body) - sum(one.end - one.start for one in lists)
    if outside > longest(""):
        what = "Everything in the request outside of its lists"
        raise _too_long(what, outside, longest(""), None)
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
                what = f"The request has more than {MEMBERS} fields; no route takes that many."
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
    """Yield the position, the byte and the depth after it of each bracket and comma of the object
    and of its members, outside of strings."""
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
