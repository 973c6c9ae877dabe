"""Ids of a side keep their type from version to version, as consumers look them up by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from evergram.errors import DataError
from evergram.ids import INTEGER

Block = tuple[pa.Array, Tensor]


def with_id_type(ids: pa.Array, expected: pa.DataType, side: str, where: str) -> pa.Array:
    """Return the ids as integers or as text, whichever those of the version before are.

    Args:
        expected: the type of the ids of the version before.
        side: "query", "candidate" or "object".
        where: the lineage, for the error.
    Raises: DataError: integers are expected, and an id is another text than an integer's.
    """
    if pa.types.is_integer(expected) == pa.types.is_integer(ids.type):
        return ids
    if not pa.types.is_integer(expected):
        return ids.cast(pa.string())
    texts = ids.cast(pa.string())
    other = pc.invert(pc.match_substring_regex(texts, INTEGER))
    place = pc.index(other, True).as_py()
    if place < 0:
        try:
            return texts.cast(pa.int64())
        except pa.ArrowInvalid:
            place = pc.index(pc.greater(pc.utf8_length(texts), 18), True).as_py()
    raise DataError(
        f"The {side} ids in {where} are integers, and now there is the text "
        f"{texts[place].as_py()!r}: consumers and stores that ask by integers would find nothing "
        "any more. Nothing was published; make it an integer or leave it out, or begin a new "
        "lineage with ids of text."
    )


def blocks_with_id_type(
    blocks: Iterable[Block], expected: pa.DataType | None, side: str, where: str
) -> Iterator[Block]:
    """Yield the blocks with ids as in `with_id_type`; unchanged where no type is expected."""
    for ids, vectors in blocks:
        yield (ids if expected is None else with_id_type(ids, expected, side, where)), vectors
