"""Parse the JSON of a request into its schema, the lists of a large one in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.fast_paths.json_pieces import PIECE, Body, Piece, cut_body
from evergram.serving.http.requests.schemas import problem_of
from evergram.serving.settings import ServiceSettings

T = TypeVar("T", bound=BaseModel)
V = TypeVar("V")

# Bytes of an object with features or of an id, and of everything outside of lists.
ELEMENT = 1 << 17
# Bytes of a coordinate, with the separator after it.
COORDINATE = 64
# Bytes of a character of a text, which may be two escapes of six.
CHARACTER = 12


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
        """Yield the elements of a list, some at a time.

        Args:
            kind: validates a list of such elements.
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
    """Parse a request into its schema. The lists of a large one are only counted here.

    Args:
        kind: the schema.
    Raises: RefusedError: the request does not fit the schema, or passes a limit.
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
    """Return the refusal of a request that does not fit its schema.

    Args:
        name: the list whose piece was parsed, if one was.
        earlier: how many elements of the list stand before the piece.
    """
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    if name is not None:
        for details in errors:
            index, *rest = details["loc"] or (0,)
            place = index + earlier if isinstance(index, int) else index
            details["loc"] = (name, place, *rest)
    message, field = problem_of(errors)
    return RefusedError(400, "request", message, field)
