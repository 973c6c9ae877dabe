"""A request's JSON, checked against what its route takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from evergram.serving.http.errors import RefusedError
from evergram.serving.http.requests.json_pieces import PIECE, Body, Piece, cut
from evergram.serving.http.schemas import problem_of
from evergram.serving.settings import Settings

T = TypeVar("T", bound=BaseModel)
V = TypeVar("V")

# Bytes of an object with features, or of an id; and of all that is in no list.
ELEMENT = 1 << 17
# Bytes that a coordinate may take, with what stands between it and the next.
COORDINATE = 64


@dataclass(frozen=True)
class Parsed(Generic[T]):
    """A request that fits its schema.

    Args:
        asked: the request; of the lists of a large one, the first element alone.
        lists: by name, all elements of these lists, not yet parsed.
    """

    asked: T
    lists: Mapping[str, Sequence[Piece]]

    def count(self, name: str) -> int:
        """Return how many elements the list of a name has."""
        if name in self.lists:
            return sum(piece.count for piece in self.lists[name])
        return len(getattr(self.asked, name))

    def parts(self, name: str, kind: TypeAdapter[list[V]]) -> Iterator[list[V]]:
        """Yield the elements of a list, some at a time.

        Args:
            kind: that all of them are of.
        Raises: RefusedError: one is not.
        """
        if name not in self.lists:
            yield getattr(self.asked, name)
            return
        before = 0
        for piece in self.lists[name]:
            try:
                elements = kind.validate_json(piece.text)
            except ValidationError as error:
                raise _refusal(error, name, before) from None
            if len(elements) != piece.count:
                raise RefusedError(
                    400, "request", f"The body is not JSON: {name!r} has a comma too many.", name
                )
            yield elements
            before += piece.count


def parse(kind: type[T], body: Body, settings: Settings) -> Parsed[T]:
    """Check a request against its schema. Of a large one no list is parsed here, only counted.

    Raises: RefusedError: it has more than that, or does not fit the schema.
    """
    short, lists = body, {}
    if len(body) > PIECE:
        found = cut(
            body,
            lambda name: settings.max_dim if name == "vector" else settings.max_batch,
            lambda name: COORDINATE * settings.max_dim if name == "vectors" else ELEMENT,
        )
        short, lists = found.short, found.lists
    try:
        asked = kind.model_validate_json(short)
    except ValidationError as error:
        raise _refusal(error) from None
    return Parsed(asked, {k: v for k, v in lists.items() if isinstance(getattr(asked, k), list)})


def _refusal(error: ValidationError, name: str | None = None, before: int = 0) -> RefusedError:
    """Say what is wrong.

    Args:
        name: of the list that was parsed by itself; its first elements, `before`, were not in it.
    """
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    if name is not None:
        for one in errors:
            index, *rest = one["loc"] or (0,)
            place = index + before if isinstance(index, int) else index
            one["loc"] = (name, place, *rest)
    message, field = problem_of(errors)
    return RefusedError(400, "request", message, field)
